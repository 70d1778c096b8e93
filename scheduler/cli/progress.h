// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <utility>

namespace berth::cli {

// One line that tells how far something is: phase, bytes, rate, time left. On a terminal it is
// drawn over itself; elsewhere a line is written when the phase changes and every few seconds.
class ProgressLine {
  public:
    using TimePoint = std::chrono::steady_clock::time_point;

    ProgressLine(std::FILE* to, bool is_terminal, std::string what);
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;
    ~ProgressLine(); // clear()

    void update(const std::string& phase, uint64_t bytes_done, uint64_t bytes_total, TimePoint now);
    // Removes the line from the terminal, so that other text can follow.
    void clear();

    // The line's text, as of the last update.
    std::string text() const;

  private:
    struct Sample {
        TimePoint at;
        uint64_t bytes = 0;
    };
    double bytes_per_second() const;

    std::FILE* to_;
    bool is_terminal_;
    std::string what_;
    std::string phase_;
    uint64_t bytes_done_ = 0;
    uint64_t bytes_total_ = 0;
    std::deque<Sample> recent_; // of this phase, over the last seconds
    TimePoint written_;
    bool drawn_ = false;
};

} // namespace berth::cli
