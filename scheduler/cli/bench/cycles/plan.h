// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace berth::cli::bench {

// What happens to the batch instance, drawn from a seed. Pure.
enum class CycleKind { kPause, kShrink, kOffload, kEvict };
std::string_view to_string(CycleKind kind);

enum class FaultKind { kBatchKilled, kBatchStuck, kDaemonKilled, kGrantRefused, kOnlineKilled };
inline constexpr size_t kFaultKinds = 5;
std::string_view to_string(FaultKind kind);

struct Cycle {
    CycleKind kind = CycleKind::kPause;
    std::chrono::milliseconds before{0}; // undisturbed work before it
    double part = 0;                     // of a Shrink: what of the grant is left
};
// 80 % Pause, 12 % Shrink, 6 % Offload and 2 % Evict, as exactly as the count allows, shuffled.
std::vector<Cycle> plan_cycles(size_t count, uint64_t seed, uint32_t work_ms_max);

// Which fault comes before the cycle of that number, if any: one of each kind, evenly between.
const FaultKind* fault_before(size_t cycle, size_t count);

} // namespace berth::cli::bench
