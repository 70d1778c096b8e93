// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace berth::cli {

// How far a load is: "loading: 1.2 GiB of 16.0 GiB (7%), 3.1 GiB/s, 4.70 s left".
struct LoadProgress {
    std::string phase;
    uint64_t bytes_done = 0;
    uint64_t bytes_total = 0;
};

// One status line on stderr. On a terminal it is written over and over (with escapes only where
// colours may be used) and ends when the object does; elsewhere a line is written for each phase
// and then every ten seconds. One thread.
class ProgressLine {
  public:
    using Clock = std::chrono::steady_clock;
    explicit ProgressLine(std::string what);
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;
    ~ProgressLine(); // leaves the cursor at the start of an empty line
    void show(const LoadProgress& progress);

  private:
    std::string text_of(const LoadProgress& progress);

    std::string what_;
    bool terminal_ = false;
    bool escapes_ = false;
    size_t shown_width_ = 0;
    std::string phase_;
    Clock::time_point phase_began_;
    uint64_t phase_bytes_ = 0; // done when the phase began to be seen
    Clock::time_point last_line_;
};

} // namespace berth::cli
