// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/dice.h"

#include <cmath>
#include <numbers>

namespace berth::cli::bench {

double Dice::uniform() {
    constexpr double kUnit = 0x1.0p-53;
    return (static_cast<double>(engine_() >> 11) + 0.5) * kUnit;
}

uint64_t Dice::below(uint64_t bound) {
    return static_cast<uint64_t>(uniform() * static_cast<double>(bound));
}

double Dice::exponential() {
    return -std::log(uniform());
}

// Box and Muller's; the second of the pair is not used.
double Dice::normal() {
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(2 * std::numbers::pi * uniform());
}

// G. Marsaglia, W. W. Tsang, "A simple method for generating gamma variables", 2000. A shape below
// 1 is made of the next one up, which the method needs.
double Dice::gamma(double shape) {
    const double boosted = shape < 1 ? shape + 1 : shape;
    const double d = boosted - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    double drawn = 0;
    for (;;) {
        const double x = normal();
        const double base = 1 + c * x;
        if (base <= 0)
            continue;
        const double v = base * base * base;
        if (std::log(uniform()) < 0.5 * x * x + d * (1 - v + std::log(v))) {
            drawn = d * v;
            break;
        }
    }
    if (shape < 1)
        drawn *= std::pow(uniform(), 1 / shape);
    return drawn / shape;
}

} // namespace berth::cli::bench
