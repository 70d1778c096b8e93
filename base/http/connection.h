// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/keeping.h"
#include "base/http/server.h"
#include "base/http/stream.h"
#include "base/http/turnstile.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace berth::http {

// Who is at the other end.
struct RemoteEnd {
    std::optional<PeerCredentials> credentials; // Unix sockets
    std::string address;                        // TCP
};

// One connection of a Server: reads requests, runs their handlers, writes answers, until the peer
// leaves, a limit is passed or close(). On the io thread alone; kept alive by its own coroutine.
class Connection : public std::enable_shared_from_this<Connection> {
  public:
    struct Setting {
        std::shared_ptr<const Router> router;
        ServerLimits limits;
        Turnstile turnstile;
        std::shared_ptr<Keeping> keeping; // null: connections end with this process
    };
    // `kept`: its place in the journal, if it has one already.
    Connection(Socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
               std::shared_ptr<Setting> setting, RemoteEnd remote,
               std::shared_ptr<KeptConnection> kept = {});
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection();
    boost::asio::awaitable<void> serve();
    // Goes on with a connection that another process has left in the journal.
    boost::asio::awaitable<void> go_on();
    // Answers 503 and the reason, and ends. Up to `patience` it waits for the request, which is not
    // looked at: a peer that still writes when its connection ends may not read what it was told.
    boost::asio::awaitable<void> turn_away(Error why, std::chrono::milliseconds patience);
    // Ends whatever is under way.
    void close();
    bool is_kept() const { return kept_ && kept_->active(); }
    // Whether a successor goes on with it now; then leave() leaves it as it is. Else finish() lets
    // it end here with its request, at once if there is none; leave_late() leaves it then.
    bool goes_over(Leave what) const;
    bool answering() const { return answering_ && !left_; }
    void leave();
    void leave_late() { leaves_late_ = true; }
    void finish();
    void end_idle(); // if it waits for a further request
    bool has_left() const { return left_; }
    // Since when it has waited for a further request; nothing: it does not.
    std::optional<std::chrono::steady_clock::time_point> idle_since() const;

  private:
    friend class AnswerStream;
    // What a connection that waits for its next request holds ready.
    static constexpr size_t kIdleBytes = 512;
    // For the first request of a connection that was made just before its process is to end.
    static constexpr std::chrono::milliseconds kLastCall{1000};
    class RequestPeer;
    // What must be known of a request to frame its answer.
    struct Head {
        bool is_head = false;
        bool is_http_1_0 = false;
        bool keep_alive = false;
        std::optional<Response> refusal; // the request was not fit to be handled
    };

    enum class Direction { kReading, kWriting };
    using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
    struct Read {
        boost::system::error_code error;
        bool late = false;
        bool too_many_fields = false;
    };
    void arm(std::chrono::milliseconds limit, Direction direction);
    bool disarm(); // whether the limit had passed
    boost::asio::awaitable<bool> greet();
    boost::asio::awaitable<bool> wait_first_byte();
    boost::asio::awaitable<void> serve_requests();
    boost::asio::awaitable<std::optional<Request>> read_request(Head* head);
    boost::asio::awaitable<Read> read_plain(Parser* parser);
    boost::asio::awaitable<Read> read_kept(Parser* parser);
    boost::asio::awaitable<boost::system::error_code> feed(Parser* parser, size_t* at);
    bool overflows(const boost::system::error_code& error, size_t at);
    boost::asio::awaitable<void> say_continue();
    bool too_many_fields(const Parser& parser) const;
    void settle_kept();
    void take_leftover();
    bool has_unread();
    boost::asio::awaitable<void> handle(Request request, Head head);
    boost::asio::awaitable<void> answer(Response response, Head head);
    boost::asio::awaitable<Status> write_all(std::string bytes, Phase phase);
    boost::asio::awaitable<Status> send_all(std::string bytes);
    Request request_of(boost::beast::http::request<boost::beast::http::string_body>& message);
    void watch_peer();
    void look_at_peer();
    void end_waiting(); // nobody waits for the answer any more

    std::shared_ptr<boost::asio::ssl::context> tls_; // outlives the stream
    Stream stream_;
    std::shared_ptr<Setting> setting_;
    RemoteEnd remote_;
    boost::asio::steady_timer timer_;
    uint64_t timer_turn_ = 0;
    bool timed_out_ = false;
    bool keep_alive_ = true;
    bool write_failed_ = false;
    uint64_t requests_ = 0;
    boost::asio::steady_timer look_again_;
    boost::beast::flat_buffer buffer_;
    std::shared_ptr<RequestPeer> peer_;
    std::shared_ptr<KeptConnection> kept_;
    bool answering_ = false; // a handler works
    bool feeding_ = false;   // bytes of a request are received into the journal
    std::optional<std::chrono::steady_clock::time_point> waits_since_; // for a first byte
    bool finishing_ = false; // it ends here with its request
    bool leaves_late_ = false;
    bool left_ = false;
};

} // namespace berth::http
