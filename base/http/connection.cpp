// SPDX-License-Identifier: Apache-2.0
#include "base/http/connection.h"

#include "base/log.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

namespace berth::http {

namespace asio = boost::asio;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr auto kLookAgain = std::chrono::milliseconds(500);
// A greeting of TLS costs a signature: some requests' worth.
constexpr size_t kGreetingWeight = 8;
constexpr auto kGoodbye = std::chrono::milliseconds(500);

} // namespace

class Connection::RequestPeer : public Peer {
  public:
    bool closed() const override { return closed_; }
    void on_closed(std::function<void()> callback) override {
        if (closed_)
            callback();
        else if (!ended_)
            callbacks_.push_back(std::move(callback));
    }
    void mark_closed() {
        if (closed_ || ended_)
            return;
        closed_ = true;
        auto callbacks = std::move(callbacks_);
        for (auto& callback : callbacks)
            callback();
    }
    void end() {
        ended_ = true;
        callbacks_.clear();
    }

  private:
    bool closed_ = false;
    bool ended_ = false;
    std::vector<std::function<void()>> callbacks_;
};

// The streaming handler's side of one answer.
class AnswerStream : public ResponseStream {
  public:
    // `started`: by a process before this one.
    AnswerStream(std::shared_ptr<Connection> connection, Connection::Head head, bool started)
        : connection_(std::move(connection)), head_(std::move(head)), started_(started) {
        if (started && head_.is_http_1_0)
            connection_->keep_alive_ = false;
    }

    asio::awaitable<Status> respond(Response response) override {
        if (started_)
            co_return fail(ErrorCode::kInternal, "the answer has begun already");
        started_ = whole_ = true;
        co_await connection_->answer(std::move(response), head_);
        co_return Status{};
    }

    asio::awaitable<Status> start(int status, std::string content_type, Headers headers) override {
        if (started_)
            co_return fail(ErrorCode::kInternal, "the answer has begun already");
        started_ = true;
        std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", status,
                                       reason_phrase(status), content_type);
        for (const auto& [name, field] : headers.fields())
            text += fmt::format("{}: {}\r\n", name, field);
        if (head_.is_http_1_0)
            connection_->keep_alive_ = false;
        else
            text += "Transfer-Encoding: chunked\r\n";
        text += connection_->keep_alive_ ? "\r\n" : "Connection: close\r\n\r\n";
        co_return co_await connection_->write_all(std::move(text), Phase::kAnswering);
    }

    asio::awaitable<Status> write(std::string chunk) override {
        if (chunk.empty() || head_.is_head)
            co_return Status{};
        if (!head_.is_http_1_0)
            chunk = fmt::format("{:x}\r\n{}\r\n", chunk.size(), chunk);
        co_return co_await connection_->write_all(std::move(chunk), Phase::kAnswering);
    }

    asio::awaitable<void> finish() {
        if (started_ && !whole_ && !head_.is_http_1_0 && !head_.is_head)
            (void)co_await connection_->write_all("0\r\n\r\n", Phase::kAnswered);
    }

    bool started() const override { return started_; }

  private:
    std::shared_ptr<Connection> connection_;
    Connection::Head head_;
    bool started_ = false;
    bool whole_ = false;
};

Connection::Connection(Socket socket, std::shared_ptr<asio::ssl::context> tls,
                       std::shared_ptr<Setting> setting, RemoteEnd remote,
                       std::shared_ptr<KeptConnection> kept)
    : tls_(std::move(tls)), stream_(std::move(socket), tls_.get()), setting_(std::move(setting)),
      remote_(std::move(remote)), timer_(stream_.get_executor()),
      look_again_(stream_.get_executor()), kept_(std::move(kept)) {}

void Connection::close() {
    if (left_)
        return;
    boost::system::error_code ignored;
    if (kept_)
        kept_->end();
    timer_.cancel();
    look_again_.cancel();
    stream_.socket().shutdown(Socket::shutdown_both, ignored);
    stream_.socket().close(ignored);
    end_waiting();
}

void Connection::end_waiting() {
    if (peer_)
        peer_->mark_closed();
}

// When the limit passes, the socket is shut down in that direction rather than its operation
// cancelled: a composed read or write that is between two of its steps has nothing to cancel, and
// would go on without a limit. After a late request the refusal can still be written.
void Connection::arm(std::chrono::milliseconds limit, Direction direction) {
    timed_out_ = false;
    uint64_t turn = ++timer_turn_;
    timer_.expires_after(limit);
    timer_.async_wait([weak = weak_from_this(), turn, direction](boost::system::error_code error) {
        auto self = weak.lock();
        if (error || !self || self->timer_turn_ != turn)
            return;
        self->timed_out_ = true;
        boost::system::error_code ignored;
        self->stream_.socket().shutdown(direction == Direction::kReading ? Socket::shutdown_receive
                                                                         : Socket::shutdown_both,
                                        ignored);
    });
}

bool Connection::disarm() {
    ++timer_turn_;
    timer_.cancel();
    return std::exchange(timed_out_, false);
}

// After a failure nothing is written any more: Asio would wait for the socket to become writable,
// which one without a peer never does again.
asio::awaitable<Status> Connection::send_all(std::string bytes) {
    if (write_failed_)
        co_return fail(ErrorCode::kUnavailable, "the peer is gone");
    arm(setting_->limits.write_max, Direction::kWriting);
    auto [error, sent] = co_await asio::async_write(stream_, asio::buffer(bytes), kTuple);
    bool late = disarm();
    if (!error)
        co_return Status{};
    keep_alive_ = false;
    write_failed_ = true;
    co_return fail(ErrorCode::kUnavailable,
                   late ? std::string("the peer took too long to read its answer")
                        : fmt::format("the peer is gone: {}", error.message()));
}

asio::awaitable<bool> Connection::greet() {
    if (!stream_.is_tls())
        co_return true;
    co_await setting_->turnstile.pass(kGreetingWeight);
    arm(setting_->limits.header_max, Direction::kWriting);
    Status greeted = co_await stream_.greet();
    disarm();
    co_return greeted.has_value();
}

// While a handler works nobody reads the socket; a peer that closes makes it readable with no
// bytes.
void Connection::watch_peer() {
    stream_.socket().async_wait(Socket::wait_read, [weak = weak_from_this(),
                                                    peer = peer_](boost::system::error_code error) {
        auto self = weak.lock();
        if (!error && self && self->peer_ == peer)
            self->look_at_peer();
    });
}

// With bytes waiting (TLS's goodbye, a next request) the end behind them is no event of its own.
void Connection::look_at_peer() {
    int fd = stream_.socket().native_handle();
    char byte = 0;
    ssize_t got = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    pollfd end{fd, POLLRDHUP, 0};
    bool gone = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) ||
                (::poll(&end, 1, 0) == 1 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
    if (gone) {
        peer_->mark_closed();
        return;
    }
    look_again_.expires_after(kLookAgain);
    look_again_.async_wait(
        [weak = weak_from_this(), peer = peer_](boost::system::error_code error) {
            auto self = weak.lock();
            if (!error && self && self->peer_ == peer)
                self->look_at_peer();
        });
}

asio::awaitable<void> Connection::answer(Response response, Head head) {
    keep_alive_ = keep_alive_ && head.keep_alive;
    std::string text =
        fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
    bool bodiless = response.status == 204 || response.status == 304;
    if (!bodiless)
        text += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", response.content_type,
                            response.body.size());
    for (const auto& [name, field] : response.headers.fields())
        text += fmt::format("{}: {}\r\n", name, field);
    if (!keep_alive_)
        text += "Connection: close\r\n";
    else if (head.is_http_1_0)
        text += "Connection: keep-alive\r\n";
    text += "\r\n";
    if (!head.is_head && !bodiless)
        text += response.body;
    (void)co_await write_all(std::move(text), Phase::kAnswered);
}

asio::awaitable<void> Connection::handle(Request request, Head head) {
    Router::Match match = setting_->router->match(request.method, request.path);
    std::optional<Response> response;
    if (match.outcome == Router::Outcome::kNotFound) {
        response = error_response(
            Error{ErrorCode::kNotFound, fmt::format("no such path: {}", request.path), {}, 0});
    } else if (match.outcome == Router::Outcome::kBadPath) {
        response = error_response(match.error);
    } else if (match.outcome == Router::Outcome::kMethodNotAllowed) {
        response = error_response(Error{ErrorCode::kInvalidArgument,
                                        fmt::format("{} is not allowed on {}: use {}",
                                                    request.method, request.path, match.allow),
                                        "MethodNotAllowed", 0},
                                  405);
        response->headers.set("Allow", match.allow);
    }
    if (response) {
        co_await answer(std::move(*response), head);
        co_return;
    }
    request.params = std::move(match.params);
    peer_ = std::make_shared<RequestPeer>();
    request.peer = peer_;
    request.kept = is_kept() ? kept_ : nullptr;
    if (is_kept())
        kept_->begin_work();
    watch_peer();
    const bool started = is_kept() && kept_->resumes() && kept_->phase() == Phase::kAnswering;
    auto stream = std::make_shared<AnswerStream>(shared_from_this(), head, started);
    // However the handler ends, its callbacks must not be called any more.
    struct EndPeer {
        std::shared_ptr<RequestPeer> peer;
        explicit EndPeer(std::shared_ptr<RequestPeer> of) : peer(std::move(of)) {}
        ~EndPeer() { peer->end(); }
    } end_peer(peer_);
    std::string failure;
    try {
        if (match.endpoint->plain)
            response = co_await match.endpoint->plain(std::move(request));
        else
            co_await match.endpoint->stream(std::move(request), stream);
    } catch (const boost::system::system_error& error) {
        if (error.code() == asio::error::operation_aborted)
            throw;
        failure = error.what();
    } catch (const std::exception& error) {
        failure = error.what();
    }
    peer_->end();
    peer_.reset();
    look_again_.cancel();
    boost::system::error_code ignored;
    stream_.socket().cancel(ignored); // the watch
    if (!failure.empty())
        log::error("handler failed path={} error=\"{}\"", match.path_template, failure);
    if (!response && !stream->started())
        response =
            error_response(Error{ErrorCode::kInternal, "the server failed to answer", {}, 0});
    if (response)
        co_await answer(std::move(*response), head);
    else if (failure.empty())
        co_await stream->finish();
    else
        keep_alive_ = false; // a cut stream is how the peer learns
}

asio::awaitable<void> Connection::serve() {
    auto self = shared_from_this();
    if (!co_await greet()) {
        close();
        co_return;
    }
    co_await serve_requests();
    if (stream_.is_tls() && !write_failed_) {
        arm(kGoodbye, Direction::kWriting);
        co_await stream_.say_goodbye();
        disarm();
    }
    close();
}

asio::awaitable<void> Connection::serve_requests() {
    while (keep_alive_ && !left_ && stream_.socket().is_open()) {
        settle_kept();
        if (!co_await wait_first_byte())
            break;
        co_await setting_->turnstile.pass(); // reading and parsing count too
        Head head;
        std::optional<Request> request = co_await read_request(&head);
        if (!request || left_)
            break;
        if (head.refusal) {
            keep_alive_ = false;
            Response refusal = std::move(*head.refusal);
            co_await answer(std::move(refusal), head);
            break;
        }
        keep_alive_ = head.keep_alive && !finishing_ && ++requests_ < setting_->limits.requests_max;
        answering_ = true;
        co_await handle(std::move(*request), head);
        answering_ = false;
        if (kept_ && !write_failed_)
            kept_->end_request();
        if (finishing_)
            break;
        if (leaves_late_ && !is_kept())
            break;
        if (leaves_late_ && keep_alive_)
            leave();
    }
}

asio::awaitable<void> Connection::turn_away(Error why, std::chrono::milliseconds patience) {
    auto self = shared_from_this();
    keep_alive_ = false;
    if (patience.count() == 0 && stream_.is_tls()) { // no time for a greeting
        close();
        co_return;
    }
    if (!co_await greet()) {
        close();
        co_return;
    }
    if (patience.count() > 0) {
        arm(patience, Direction::kReading);
        (void)co_await stream_.async_read_some(buffer_.prepare(kIdleBytes), kTuple);
        disarm();
    }
    Response response = error_response(why);
    response.status = 503; // whatever the kind: trying again later may help
    Head head;
    co_await answer(std::move(response), head);
    close();
}

} // namespace berth::http
