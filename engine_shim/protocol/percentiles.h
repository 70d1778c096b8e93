// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

namespace berth::protocol {

// Which percentiles of its latencies a Report tells, in this order.
inline constexpr std::array<double, 6> kPercentiles{50, 90, 95, 99, 99.9, 100};

} // namespace berth::protocol
