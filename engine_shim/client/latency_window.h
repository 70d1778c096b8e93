// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/protocol/percentiles.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace berth {

// The latencies of the last ten seconds, of which a report tells the percentiles. Any thread; the
// lock is held for a copy of at most kSamplesMax numbers.
class LatencyWindow {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::seconds kSpan{10};
    static constexpr size_t kSamplesMax = 4096; // the oldest go

    void add(uint64_t microseconds, Clock::time_point now = Clock::now()) {
        const std::lock_guard lock(mutex_);
        samples_.emplace_back(now, microseconds);
        if (samples_.size() > kSamplesMax)
            samples_.pop_front();
    }
    // Microseconds at protocol::kPercentiles (the smallest sample that so many are not above);
    // empty when there was nothing.
    std::vector<uint64_t> percentiles(Clock::time_point now = Clock::now()) {
        std::vector<uint64_t> sorted;
        {
            const std::lock_guard lock(mutex_);
            while (!samples_.empty() && now - samples_.front().first > kSpan)
                samples_.pop_front();
            for (const auto& [at, microseconds] : samples_)
                sorted.push_back(microseconds);
        }
        std::vector<uint64_t> found;
        if (sorted.empty())
            return found;
        std::sort(sorted.begin(), sorted.end());
        for (double percentile : protocol::kPercentiles) {
            const auto rank = static_cast<size_t>(
                percentile / 100.0 * static_cast<double>(sorted.size()) + 0.999999);
            found.push_back(sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1]);
        }
        return found;
    }

  private:
    std::mutex mutex_; // guards samples_
    std::deque<std::pair<Clock::time_point, uint64_t>> samples_;
};

} // namespace berth
