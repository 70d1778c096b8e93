// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/event.h"

#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <ctime>
#include <functional>

namespace berth {

// Tells the node what the wall clock says, at start and every minute: someone may set it, and local
// time may change its offset. Thread rule: the one thread; nothing blocks.
class WallClockTeller {
  public:
    using Tell = std::function<void(node::WallClockTold)>;
    WallClockTeller(boost::asio::io_context& context, Tell tell)
        : timer_(context), tell_(std::move(tell)) {}

    void start() {
        const std::time_t now = std::time(nullptr);
        std::tm local{};
        ::localtime_r(&now, &local);
        tell_({now, local.tm_gmtoff});
        timer_.expires_after(kInterval);
        timer_.async_wait([this](boost::system::error_code error) {
            if (!error)
                start();
        });
    }
    void stop() { timer_.cancel(); }

  private:
    static constexpr std::chrono::seconds kInterval{60};
    boost::asio::steady_timer timer_;
    Tell tell_;
};

} // namespace berth
