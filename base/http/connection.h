// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/server.h"

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace berth::http {

using Socket = boost::asio::generic::stream_protocol::socket;

// One connection of a Server: reads requests, runs their handlers, writes answers, until the peer
// leaves, a limit is passed or close(). On the io thread alone; kept alive by its own coroutine.
class Connection : public std::enable_shared_from_this<Connection> {
  public:
    Connection(Socket socket, std::shared_ptr<const Router> router, ServerLimits limits,
               std::optional<PeerCredentials> credentials);
    boost::asio::awaitable<void> serve();
    // Answers 503 and the reason, and ends. Up to `patience` it waits for the request, which is not
    // looked at: a peer that still writes when its connection ends may not read what it was told.
    boost::asio::awaitable<void> turn_away(Error why, std::chrono::milliseconds patience);
    // Ends whatever is under way.
    void close();

  private:
    friend class AnswerStream;
    class RequestPeer;
    struct Head;

    enum class Direction { kReading, kWriting };
    void arm(std::chrono::milliseconds limit, Direction direction);
    bool disarm(); // whether the limit had passed
    boost::asio::awaitable<bool> wait_first_byte();
    boost::asio::awaitable<std::optional<Request>> read_request(Head* head);
    boost::asio::awaitable<void> handle(Request request, Head head);
    boost::asio::awaitable<void> answer(Response response, Head head);
    boost::asio::awaitable<Status> write_all(std::string bytes);
    void watch_peer();

    Socket socket_;
    std::shared_ptr<const Router> router_;
    ServerLimits limits_;
    std::optional<PeerCredentials> credentials_;
    boost::asio::steady_timer timer_;
    uint64_t timer_turn_ = 0;
    bool timed_out_ = false;
    bool keep_alive_ = true;
    boost::beast::flat_buffer buffer_;
    std::shared_ptr<RequestPeer> peer_;
};

} // namespace berth::http
