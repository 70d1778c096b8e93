// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "scheduler/cli/bench/colocate/node.h"
#include "scheduler/cli/bench/colocate/open_loop.h"
#include "scheduler/cli/bench/colocate/statistics.h"

#include <optional>
#include <string>
#include <vector>

namespace berth::cli::bench {

// What one phase gave, as it was measured.
struct PhaseResult {
    PhasePlan plan;
    std::string skipped; // why it was not run
    std::string error;   // why it did not go as it should; what was measured until then counts
    double window_s = 0;
    LoopOutcome outcome;
    size_t node = 0; // which it was measured on, of those that the run has started
    ColocateNode::Preempted preempted;
    std::optional<double> joules; // that the GPU used,
    double joules_s = 0;          // in this time

    bool was_run() const { return skipped.empty() && !outcome_is_empty(); }
    bool outcome_is_empty() const { return outcome.answers.empty() && outcome.batch.empty(); }
};

// The kinds of latency that are reported, each in milliseconds, of each request.
struct Latencies {
    Samples ttft; // from the moment it was due until its first token had been read
    Samples tpot; // after the first, the mean of the request's tokens
    Samples gap;  // between two tokens, each
};
Latencies latencies_of(const PhaseResult& result);

// The part of the window in which at least one request was due and not yet answered.
double busy_part(const PhaseResult& result);

struct BatchRate {
    double tokens_per_s = 0;
    double prefilled_per_s = 0;
    uint64_t gate_pauses = 0;
    uint64_t sequences_preempted = 0;
    std::vector<double> by_second; // tokens/s of each whole second
};
// Between the first and the last look within the window; nothing without two looks.
std::optional<BatchRate> batch_rate(const PhaseResult& result);

// What phases are compared with.
struct Baseline {
    const PhaseResult* online = nullptr; // the first phase with online alone
    const PhaseResult* batch = nullptr;  // batch alone
    LatencyTargets targets;              // slo_factor times p99 of online alone
};
// Answers that are not the same text as the same request's alone.
size_t mismatches(const PhaseResult& result, const Baseline& baseline);

struct Counting {
    size_t resamples = 2000;
    uint64_t seed = 1;
};
// One line of the report: percentiles, their ratios to online alone with 95 % intervals, how many
// kept the targets, what batch did and what of the idle time's worth that is.
json::object phase_json(const PhaseResult& result, const Baseline& baseline,
                        const Counting& counting);

} // namespace berth::cli::bench
