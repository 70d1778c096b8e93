// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/cli/bench/colocate/options.h"

#include <string>
#include <string_view>
#include <vector>

namespace berth::cli::bench {

// One stretch of a run: who works, and under which rules of sharing.
struct PhasePlan {
    std::string name;
    bool online = true;
    bool batch = true;
    std::string compute = "Gate";
    std::string share = "0%"; // batchShareWhenBusy
    bool with_slo = false;    // the instance has latency targets, made from online alone
    bool own_node = false;    // engines must be started under its rules
};

// As --phases says, in that order; empty: all of them.
Result<std::vector<PhasePlan>> phase_plans(const ColocateOptions& options);
std::string all_phase_names();

inline constexpr std::string_view kOnlineAlone = "online-alone";
inline constexpr std::string_view kOnlineAgain = "online-alone-again";
inline constexpr std::string_view kBatchAlone = "batch-alone";
inline constexpr std::string_view kMpsAlone = "mps-online-alone";

} // namespace berth::cli::bench
