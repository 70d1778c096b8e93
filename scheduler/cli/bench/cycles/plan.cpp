// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/cycles/plan.h"

#include "scheduler/cli/bench/colocate/dice.h"

#include <utility>

namespace berth::cli::bench {

namespace {

constexpr FaultKind kFaults[kFaultKinds] = {FaultKind::kBatchKilled, FaultKind::kBatchStuck,
                                            FaultKind::kDaemonKilled, FaultKind::kGrantRefused,
                                            FaultKind::kOnlineKilled};

size_t part_of(size_t count, size_t percent) {
    return (count * percent + 50) / 100;
}

} // namespace

std::string_view to_string(CycleKind kind) {
    switch (kind) {
    case CycleKind::kPause:
        return "Pause";
    case CycleKind::kShrink:
        return "Shrink";
    case CycleKind::kOffload:
        return "Offload";
    case CycleKind::kEvict:
        return "Evict";
    }
    return "";
}

std::string_view to_string(FaultKind kind) {
    switch (kind) {
    case FaultKind::kBatchKilled:
        return "batch killed";
    case FaultKind::kBatchStuck:
        return "batch stuck";
    case FaultKind::kDaemonKilled:
        return "berthd killed";
    case FaultKind::kGrantRefused:
        return "grant refused";
    case FaultKind::kOnlineKilled:
        return "online killed";
    }
    return "";
}

std::vector<Cycle> plan_cycles(size_t count, uint64_t seed, uint32_t work_ms_max) {
    std::vector<Cycle> cycles(count);
    size_t next = 0;
    for (const auto& [kind, percent] :
         {std::pair{CycleKind::kShrink, size_t{12}}, std::pair{CycleKind::kOffload, size_t{6}},
          std::pair{CycleKind::kEvict, size_t{2}}})
        for (size_t n = 0; n < part_of(count, percent) && next < count; ++n)
            cycles[next++].kind = kind;
    Dice dice(seed);
    for (size_t n = count; n > 1; --n)
        std::swap(cycles[n - 1].kind, cycles[dice.below(n)].kind);
    for (Cycle& one : cycles) {
        one.before = std::chrono::milliseconds(dice.below(work_ms_max + 1));
        one.part = 0.5 + 0.4 * dice.uniform();
    }
    return cycles;
}

const FaultKind* fault_before(size_t cycle, size_t count) {
    for (size_t n = 0; n < kFaultKinds; ++n)
        if (cycle == (n + 1) * count / (kFaultKinds + 1))
            return &kFaults[n];
    return nullptr;
}

} // namespace berth::cli::bench
