// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace berth::serve {

// Shows how far a batch is, on stderr: one line that is drawn again on a terminal, else a plain
// line every ten seconds. Not thread-safe.
class Progress {
  public:
    using Clock = std::chrono::steady_clock;

    // `done` of `total` were answered before this process began.
    Progress(uint64_t done, uint64_t total);

    // Draws if it is time to.
    void update(uint64_t done, uint64_t tokens);
    // The last line, always.
    void finish(uint64_t done, uint64_t tokens);

    // "[#####     ] 12/24 50% 3.4 requests/s 120 tokens/s 3 s left"
    std::string line(uint64_t done, uint64_t tokens, Clock::duration elapsed, bool has_bar) const;

  private:
    uint64_t done_before_;
    uint64_t total_;
    bool is_terminal_;
    Clock::time_point begin_ = Clock::now();
    Clock::time_point next_ = begin_;
};

} // namespace berth::serve
