// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/cli/bench/colocate/answer.h"
#include "scheduler/cli/bench/colocate/engine_text.h"
#include "scheduler/cli/bench/colocate/http_wire.h"

#include <optional>
#include <string>
#include <vector>

namespace berth::cli::bench {

struct LoopPlan {
    Endpoint online;
    std::vector<std::string> requests; // whole texts
    std::vector<double> due_s;         // of each, since the begin
    bool one_by_one = false;           // each when the one before has ended, whatever its due
    bool keeps_connections = true;
    std::optional<Endpoint> batch; // whose counters are read ten times a second
    double window_s = 0;           // it lasts at least so long,
    double patience_s = 60;        // and so long beyond it for what is not answered
};

struct BatchPoint {
    double at_s = 0;
    BatchCounters counters;
};

struct LoopOutcome {
    std::vector<Answer> answers; // of each request
    std::vector<BatchPoint> batch;
    double begun_monotonic_s = 0; // of the begin, by CLOCK_MONOTONIC
    bool stopped = false;         // by a signal: what was measured until then
};

// An open loop: requests go out when they are due, whatever became of those before. All of it on
// the calling thread, which it blocks. A refused or broken request is an Answer with its error; an
// Error is what keeps the loop itself from going on.
Result<LoopOutcome> run_loop(LoopPlan plan);

} // namespace berth::cli::bench
