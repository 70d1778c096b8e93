// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"

#include <chrono>
#include <string>
#include <vector>

namespace berth::cli::bench {

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The value at `percent` of the samples by rank (0 < percent <= 100); 0 without samples.
double percentile(std::vector<double> samples, double percent);

// One line of a bench: milliseconds (or `unit`) of each round, beside a floor.
struct Figure {
    std::string bench;
    std::string name;
    std::vector<double> samples;
    std::vector<double> floor;
    std::string floor_is; // what the floor is, or why there is none
    std::string covers;   // what is in the figure and what is not
    json::object facts;   // bytes, tensors, device, ...
    std::string unit = "ms";
};

// {bench, figure, unit, rounds, p50, p99, min, max, floor: {p50, p99, is}, ratio, covers, ...facts}
json::object to_json(const Figure& figure);
// One JSON object a line, or a table with what each figure covers below it.
void print_figures(const std::vector<Figure>& figures, bool as_json);

} // namespace berth::cli::bench
