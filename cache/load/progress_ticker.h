// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/stream.h"

#include <chrono>
#include <cstdint>

namespace berth {

inline constexpr auto kProgressPeriod = std::chrono::milliseconds(100);

// Calls back at most once a period; first before anything is read. One thread; the callback
// outlives it.
class ProgressTicker {
  public:
    ProgressTicker(const StreamProgress& progress, uint64_t total)
        : progress_(progress), total_(total) {}
    Status tick(uint64_t done) {
        auto now = std::chrono::steady_clock::now();
        if (!progress_ || now < due_)
            return {};
        due_ = now + kProgressPeriod;
        return progress_(done, total_);
    }

  private:
    const StreamProgress& progress_;
    uint64_t total_;
    std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::now();
};

} // namespace berth
