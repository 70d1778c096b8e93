// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/event_log.h"
#include "scheduler/node/types.h"

#include <algorithm>
#include <chrono>

// Steady time does not survive a process: it is kept as wall-clock time, and read back as an age.
namespace berth {

inline int64_t wall_ms(node::TimePoint at) {
    const auto age = std::chrono::steady_clock::now() - at;
    return wall_clock_ms() - std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
}

inline node::TimePoint steady_from(int64_t wall_time_ms) {
    const int64_t age = std::max<int64_t>(0, wall_clock_ms() - wall_time_ms);
    return std::chrono::steady_clock::now() - std::chrono::milliseconds(age);
}

} // namespace berth
