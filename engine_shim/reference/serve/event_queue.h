// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/serve/engine_api.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <deque>
#include <memory>
#include <optional>

namespace berth::serve {

// Token events on their way from the engine's thread to a coroutine on the io thread. callback()
// may be called on any thread; all else is for the io thread. It lives until the engine's last
// callback has gone; the io_context must outlive the engine's requests.
class EventQueue : public std::enable_shared_from_this<EventQueue> {
  public:
    explicit EventQueue(boost::asio::io_context& context) : context_(context), wake_(context) {
        wake_.expires_at(std::chrono::steady_clock::time_point::max());
    }

    engine::TokenCallback callback();
    // No events are awaited any more: next() gives nullopt at once.
    void close();
    bool closed() const { return closed_; }
    // The next event; nullopt once closed, or after `deadline`.
    boost::asio::awaitable<std::optional<engine::TokenEvent>>
    next(std::chrono::steady_clock::time_point deadline =
             std::chrono::steady_clock::time_point::max());
    // Whether next() would not wait.
    bool has_next() const { return !events_.empty() || closed_; }

  private:
    boost::asio::io_context& context_;
    boost::asio::steady_timer wake_;
    std::deque<engine::TokenEvent> events_;
    bool closed_ = false;
};

} // namespace berth::serve
