// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>

namespace berth::engine::fast {

// How long a layer takes for how many rows, by what was measured, so that pieces of a step are as
// long as a closed gate may be kept waiting. Engine thread only.
class Pace {
  public:
    using Seconds = std::chrono::duration<double>;

    // A piece of so many layers took so long. One that was held up, as by a neighbour on the
    // device, counts a little and no more.
    void note(uint32_t rows, uint32_t layers, Seconds took) {
        const double each = took.count() / std::max(layers, 1U);
        auto [known, is_new] = layer_seconds_.try_emplace(kind_of(rows), each);
        if (!is_new)
            known->second += (std::min(each, known->second * 3) - known->second) * 0.1;
    }
    // One until something is known.
    uint32_t layers_within(uint32_t rows, Seconds limit, uint32_t layers) const {
        const auto known = layer_seconds_.find(kind_of(rows));
        if (known == layer_seconds_.end() || known->second <= 0)
            return 1;
        const double fit = limit.count() / known->second;
        return fit >= layers ? layers : std::max(static_cast<uint32_t>(fit), 1U);
    }

  private:
    // Rows that take about as long.
    static uint32_t kind_of(uint32_t rows) { return rows <= 8 ? rows : (rows + 7) / 8 * 8; }
    std::map<uint32_t, double> layer_seconds_;
};

} // namespace berth::engine::fast
