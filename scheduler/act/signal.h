// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <memory>
#include <vector>

namespace berth {

// Wakes coroutines that wait for something to change: each waits on a timer of its own, which
// notify() ends early. Thread rule: the io_context's one thread.
class Signal {
  public:
    using Waiter = std::shared_ptr<boost::asio::steady_timer>;

    explicit Signal(boost::asio::io_context& context) : context_(context) {}
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;

    // To be awaited at once: `co_await waiter->async_wait(...)` ends with the deadline or with the
    // next notify().
    Waiter waiter(std::chrono::steady_clock::time_point until) {
        std::erase_if(waiters_, [](const auto& one) { return one.expired(); });
        auto made = std::make_shared<boost::asio::steady_timer>(context_, until);
        waiters_.push_back(made);
        return made;
    }
    void notify() {
        for (auto& weak : std::exchange(waiters_, {}))
            if (auto waiter = weak.lock())
                waiter->cancel();
    }

  private:
    boost::asio::io_context& context_;
    std::vector<std::weak_ptr<boost::asio::steady_timer>> waiters_;
};

} // namespace berth
