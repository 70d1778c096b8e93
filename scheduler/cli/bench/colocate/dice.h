// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

namespace berth::cli::bench {

// Random numbers that are the same for a seed on every machine and library. One thread.
class Dice {
  public:
    explicit Dice(uint64_t seed) : engine_(seed) {}

    double uniform(); // in (0, 1)
    uint64_t below(uint64_t bound);
    double exponential(); // mean 1
    double normal();      // mean 0, deviation 1
    // Mean 1 and variance 1 / shape: below 1 what comes, comes in bursts.
    double gamma(double shape);

  private:
    std::mt19937_64 engine_;
};

} // namespace berth::cli::bench
