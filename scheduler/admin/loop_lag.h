// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/metrics.h"

#include <boost/asio/steady_timer.hpp>

namespace berth {

// How long what becomes ready waits for the decision thread: a timer that says how late it is,
// every kEvery. On that thread; the metrics outlive it.
class LoopLag {
  public:
    static constexpr std::chrono::milliseconds kEvery{50};

    LoopLag(boost::asio::io_context& context, NodeMetrics& metrics)
        : timer_(context), metrics_(metrics) {}
    LoopLag(const LoopLag&) = delete;
    LoopLag& operator=(const LoopLag&) = delete;
    void start() {
        timer_.expires_after(kEvery);
        timer_.async_wait([this](boost::system::error_code error) {
            if (error)
                return;
            double late =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - timer_.expiry())
                    .count();
            metrics_.loop_lag.observe(late);
            metrics_.loop_lag_max = std::max(metrics_.loop_lag_max, late);
            start();
        });
    }
    void stop() { timer_.cancel(); }

  private:
    boost::asio::steady_timer timer_;
    NodeMetrics& metrics_;
};

} // namespace berth
