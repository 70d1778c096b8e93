// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace berth {

// Times what comes one after the other. A value.
class PhaseClock {
  public:
    // Milliseconds since the last call, or since the clock was made.
    double lap() {
        auto now = std::chrono::steady_clock::now();
        std::chrono::duration<double, std::milli> passed = now - start_;
        start_ = now;
        return passed.count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

} // namespace berth
