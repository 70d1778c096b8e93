// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/alarm.h"
#include "scheduler/node/event.h"

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
        : context_(context), tell_(std::move(tell)) {}

    void start() {
        const std::time_t now = std::time(nullptr);
        std::tm local{};
        ::localtime_r(&now, &local);
        tell_({now, local.tm_gmtoff});
        again_.set(context_, kInterval, [this] { start(); });
    }
    void stop() { again_.cancel(); }

  private:
    static constexpr std::chrono::seconds kInterval{60};
    boost::asio::io_context& context_;
    Tell tell_;
    Alarm again_;
};

} // namespace berth
