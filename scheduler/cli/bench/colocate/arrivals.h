// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/colocate/options.h"
#include "scheduler/cli/bench/colocate/trace.h"

#include <cstdint>
#include <string>
#include <vector>

namespace berth::cli::bench {

struct Arrival {
    double due_s = 0;
    uint32_t prompt_tokens = 0;
    uint32_t tokens = 0; // to be generated
};
using Arrivals = std::vector<Arrival>;

struct ArrivalProcess {
    enum class Kind { kTrace, kPoisson, kGamma };
    Kind kind = Kind::kPoisson;
    double shape = 1; // of kGamma
};
// "trace", "poisson", "gamma", "gamma:0.5"; "": trace where there is one, else poisson.
Result<ArrivalProcess> arrival_process(const std::string& words, bool has_trace);

// The run's requests before they are scaled: gaps of one second on average, lengths as the trace
// has them, or, without one, drawn from distributions of its kind (log-normal).
Result<Arrivals> unscaled_arrivals(const ColocateOptions& options);

struct Scaled {
    Arrivals arrivals;
    double window_s = 0;       // within it they come
    double token_scale = 1;    // what their lengths were multiplied with
    size_t clipped = 0;        // that would have exceeded the engine's context
    double predicted_busy = 0; // by the engine's measured pace
};
struct Scale {
    double window_s = 1; // within it they come
    double tokens = 1;   // lengths are multiplied with it,
    double prompts = 0;  // and prompts with this, if it is not 0
};
// At least one token of prompt and two to be generated, together no more than the engine's context.
Scaled scaled(const Arrivals& unscaled, const Scale& scale, uint32_t context_tokens_max);

} // namespace berth::cli::bench
