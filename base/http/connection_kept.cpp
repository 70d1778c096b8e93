// SPDX-License-Identifier: Apache-2.0
// What a connection does beside its work so that a successor of this process can go on with it, and
// how it goes on with what another has left.
#include "base/http/connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <sys/socket.h>
#include <tuple>

namespace berth::http {

namespace asio = boost::asio;
namespace beast = boost::beast;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr size_t kReadBytesMax = size_t{64} << 10;

} // namespace

// However its coroutine ended: a successor finds connections that were left, not forgotten.
Connection::~Connection() {
    if (kept_)
        kept_->end();
}

// Between two requests: one that was given up goes on without its slot, and one without is given
// one if that is possible now.
void Connection::settle_kept() {
    take_leftover();
    if (!kept_ && setting_->keeping && !stream_.is_tls() && buffer_.size() == 0 && !finishing_ &&
        !leaves_late_)
        kept_ = setting_->keeping->keep(stream_.socket().native_handle());
}

void Connection::take_leftover() {
    if (!kept_ || kept_->active() || left_)
        return;
    const std::string left = kept_->leftover();
    kept_.reset();
    asio::buffer_copy(buffer_.prepare(left.size()), asio::buffer(left));
    buffer_.commit(left.size());
}

// Gives the parser what is there and then what comes, until it has the header, or all if it is
// eager. Bytes are received straight into the journal: between the kernel's word that they were
// taken and this process's note of it nothing can be lost.
asio::awaitable<boost::system::error_code> Connection::feed(Parser* parser, size_t* at) {
    for (;;) {
        if (!kept_->active()) // it was left, or given up
            co_return left_ ? beast::http::error::partial_message : beast::http::error::need_more;
        const std::string_view bytes = kept_->inbound().substr(*at);
        boost::system::error_code error;
        size_t used = 0;
        if (!bytes.empty())
            used = parser->put(asio::buffer(bytes.data(), bytes.size()), error);
        *at += used;
        if (error && error != beast::http::error::need_more)
            co_return error;
        if (parser->is_done() || (parser->is_header_done() && !parser->eager()))
            co_return boost::system::error_code();
        if (used > 0 && used < bytes.size())
            continue;
        const std::shared_ptr<KeptConnection> kept = kept_;
        const std::span<char> room = kept->room();
        if (room.empty())
            co_return beast::http::error::need_more;
        feeding_ = true;
        auto [failed, got] = co_await stream_.async_read_some(
            asio::buffer(room.data(), std::min(room.size(), kReadBytesMax)), kTuple);
        feeding_ = false;
        kept->received(got);
        if (!kept->active())
            continue;
        if (failed || got == 0 || left_)
            co_return kept->inbound().empty() ? beast::http::error::end_of_stream
                                              : beast::http::error::partial_message;
    }
}

// What does not fit the slot, or is not kept any more, is read as on any other connection.
bool Connection::overflows(const boost::system::error_code& error, size_t at) {
    if (error != beast::http::error::need_more || left_)
        return false;
    kept_->give_up();
    const std::string rest = kept_->leftover().substr(at);
    kept_.reset();
    asio::buffer_copy(buffer_.prepare(rest.size()), asio::buffer(rest));
    buffer_.commit(rest.size());
    return true;
}

asio::awaitable<void> Connection::say_continue() {
    if (kept_->phase() != Phase::kReading)
        co_return; // a process before this one did
    std::string go_on(kContinue);
    (void)kept_->begin_write(go_on, Phase::kContinued, false);
    (void)co_await asio::async_write(stream_, asio::buffer(go_on), kTuple);
}

asio::awaitable<Connection::Read> Connection::read_kept(Parser* parser) {
    const ServerLimits& limits = setting_->limits;
    Read read;
    size_t at = 0;
    parser->eager(false);
    arm(std::min(limits.header_max, limits.request_max), Direction::kReading);
    read.error = co_await feed(parser, &at);
    read.late = disarm();
    if (overflows(read.error, at))
        co_return co_await read_plain(parser);
    read.too_many_fields = !read.error && too_many_fields(*parser);
    if (!read.error && !read.too_many_fields && !parser->is_done()) {
        arm(limits.request_max, Direction::kReading);
        if (beast::iequals(parser->get()[beast::http::field::expect], "100-continue"))
            co_await say_continue();
        parser->eager(true);
        read.error = co_await feed(parser, &at);
        size_t got = 0;
        if (overflows(read.error, at))
            std::tie(read.error, got) =
                co_await beast::http::async_read(stream_, buffer_, *parser, kTuple);
        read.late = disarm();
    }
    if (is_kept() && !read.error)
        kept_->begin_request(at);
    co_return read;
}

asio::awaitable<Status> Connection::write_all(std::string bytes, Phase phase) {
    if (kept_ && !write_failed_)
        (void)kept_->begin_write(bytes, phase, !keep_alive_);
    co_return co_await send_all(std::move(bytes));
}

asio::awaitable<void> Connection::go_on() {
    auto self = shared_from_this();
    std::string unsent(kept_->unsent());
    Status sent;
    if (!unsent.empty())
        sent = co_await send_all(std::move(unsent));
    if (!sent || (kept_->phase() == Phase::kAnswered && kept_->closes())) {
        close();
        co_return;
    }
    requests_ = kept_->requests();
    if (kept_->phase() == Phase::kAnswered) {
        ++requests_;
        kept_->end_request();
        if (leaves_late_)
            leave();
    }
    if (!finishing_)
        co_await serve_requests();
    close();
}

// What another process began and no handler here has taken up yet can only go over.
bool Connection::goes_over(Leave what) const {
    if (!is_kept() || what == Leave::kNothing)
        return false;
    return what == Leave::kRequests || !answering_ ||
           (what == Leave::kConnections && !kept_->is_begun());
}

// Its slot is given up: whoever serves next finds nothing of it.
void Connection::finish() {
    finishing_ = true;
    keep_alive_ = false;
    if (is_kept()) {
        if (kept_->is_read() && !answering_)
            return close(); // another process's, and taken up by no handler here
        if (const auto count = tcp_count(stream_.socket().native_handle()))
            kept_->catch_up(*count);
        kept_->give_up(KeptConnection::Why::kEndsHere);
        boost::system::error_code ignored;
        if (feeding_ || waits_since_) // into memory that is not its own any more
            stream_.socket().cancel(ignored);
    } else if (idle_since()) {
        end_idle();
    } else if (waits_since_) {
        arm(std::min(setting_->limits.idle_max, kLastCall), Direction::kReading);
    }
}

// What has come in this moment is answered.
void Connection::end_idle() {
    boost::system::error_code ignored;
    if (idle_since() && !has_unread())
        stream_.socket().cancel(ignored);
}

bool Connection::has_unread() {
    char byte = 0;
    return (kept_ && kept_->has_leftover()) ||
           ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

std::optional<std::chrono::steady_clock::time_point> Connection::idle_since() const {
    return requests_ > 0 ? waits_since_ : std::nullopt;
}

void Connection::leave() {
    if (!is_kept() || left_)
        return;
    left_ = true;
    kept_->leave();
    timer_.cancel();
    look_again_.cancel();
    boost::system::error_code ignored;
    stream_.socket().close(ignored); // a duplicate is parked: the connection stays
    end_waiting();
}

} // namespace berth::http
