// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/phases.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::cli::bench {

namespace {

// Of the multiprocessors, for batch under MPS: half gave the most work in all beside decoding.
constexpr const char* kMpsShare = "50%";

// MPS last: it takes a node of its own, where online alone is another one.
std::vector<PhasePlan> all_phases(double share_percent) {
    const std::string share = fmt::format("{:g}%", share_percent);
    std::vector<PhasePlan> all(9);
    all[0] = {.name = std::string(kOnlineAlone), .batch = false};
    all[1] = {.name = std::string(kBatchAlone), .online = false};
    all[2] = {.name = "gate"};
    all[3] = {.name = "time-slicing", .compute = "TimeSlice"};
    all[4] = {.name = "gate-share", .share = share};
    all[5] = {.name = "slo", .share = "SLO", .with_slo = true};
    all[6] = {.name = std::string(kOnlineAgain), .batch = false};
    all[7] = {.name = std::string(kMpsAlone),
              .batch = false,
              .compute = "MPS",
              .share = kMpsShare,
              .own_node = true};
    all[8] = {.name = "mps", .compute = "MPS", .share = kMpsShare, .own_node = true};
    return all;
}

} // namespace

std::string all_phase_names() {
    std::string names;
    for (const PhasePlan& phase : all_phases(0))
        names += (names.empty() ? "" : ", ") + phase.name;
    return names;
}

Result<std::vector<PhasePlan>> phase_plans(const ColocateOptions& options) {
    const std::vector<PhasePlan> all = all_phases(options.share_percent);
    if (options.phases.empty())
        return all;
    std::vector<PhasePlan> chosen;
    for (size_t at = 0; at <= options.phases.size();) {
        const size_t end = std::min(options.phases.find(',', at), options.phases.size());
        const std::string name = options.phases.substr(at, end - at);
        const auto found = std::ranges::find(all, name, &PhasePlan::name);
        if (found == all.end())
            return fail(
                ErrorCode::kInvalidArgument,
                fmt::format("--phases: '{}' is none; there are {}", name, all_phase_names()));
        if (std::ranges::find(chosen, name, &PhasePlan::name) != chosen.end())
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("--phases: '{}' stands there twice", name));
        chosen.push_back(*found);
        at = end + 1;
    }
    const bool first_alone = chosen.front().name == kOnlineAlone;
    for (const PhasePlan& phase : chosen)
        if (phase.with_slo && !first_alone)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("--phases: '{}' needs '{}' as the first: its targets are made "
                                    "from that one's p99",
                                    phase.name, kOnlineAlone));
    return chosen;
}

} // namespace berth::cli::bench
