// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/stream_tuner.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

namespace berth {

// Lets only as many threads read from the disk at once as the disk is fastest with, which it
// measures: see StreamTuner. Thread-safe; enter() blocks. Outlives its turns.
class DiskGate {
  public:
    using Now = std::function<std::chrono::steady_clock::time_point()>;

    // A thread's turn at the disk; its end lets the next one in.
    class Turn {
      public:
        explicit Turn(DiskGate& gate) : gate_(&gate) {}
        Turn(Turn&& other) noexcept
            : gate_(std::exchange(other.gate_, nullptr)), bytes_(other.bytes_) {}
        Turn& operator=(Turn&&) = delete;
        ~Turn() {
            if (gate_ != nullptr)
                gate_->leave(bytes_);
        }
        void add_bytes(uint64_t bytes) { bytes_ += bytes; }

      private:
        DiskGate* gate_;
        uint64_t bytes_ = 0;
    };

    explicit DiskGate(Now now = [] { return std::chrono::steady_clock::now(); })
        : now_(std::move(now)) {}
    Turn enter();
    // The number of streams that was best.
    int streams() const;
    // What the disk gives with it; 0 before the first measurement.
    double bytes_per_second() const;

  private:
    void leave(uint64_t bytes);
    void close_window();
    double busy_seconds() const;

    const Now now_;
    mutable std::mutex mutex_; // guards all below
    std::condition_variable changed_;
    StreamTuner tuner_;
    int active_ = 0;
    // What is measured: bytes read while anybody read, from when a new count has settled.
    int unsettled_ = 0; // turns that began under the count before
    uint64_t window_bytes_ = 0;
    double window_seconds_ = 0;
    std::chrono::steady_clock::time_point busy_since_;
    bool waited_ = false;
};

} // namespace berth
