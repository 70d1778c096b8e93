// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace boost::asio {
class io_context;
}

namespace berth::cli::bench {

struct Endpoint {
    std::string host;
    uint16_t port = 0;
};
// "http://127.0.0.1:8000", an address in numbers.
Result<Endpoint> endpoint_from(const std::string& url);

// A client's HTTP/1.1 connection that is opened when it is first needed and kept while the server
// keeps it; one exchange at a time. On the io_context's one thread, which outlives it; an exchange
// under way keeps what it needs when the wire is dropped.
class HttpWire {
  public:
    using Clock = std::chrono::steady_clock;
    using OnPiece = std::function<void(std::string_view piece, Clock::time_point read_at)>;
    struct Reply {
        int status = 0;
        std::string body; // empty where it went to `on_piece`
    };

    HttpWire(boost::asio::io_context& context, Endpoint endpoint);

    // `request` is the whole text of one. The body of a reply below 400 goes to `on_piece`, if one
    // is given, as it is read. A kept connection that the server has closed meanwhile is opened
    // again, once.
    boost::asio::awaitable<Result<Reply>> exchange(std::string request, OnPiece on_piece);
    bool is_open() const;

  private:
    struct State;
    std::shared_ptr<State> state_;
};

} // namespace berth::cli::bench
