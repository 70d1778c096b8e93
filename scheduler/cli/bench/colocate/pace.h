// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/colocate/arrivals.h"

namespace berth::cli::bench {

// What the engine took when it was alone, measured before the phases.
struct EnginePace {
    double prompt_s = 0;       // for a prompt, whatever its length
    double prompt_token_s = 0; // and for each token of it
    double step_s = 0;         // for a step that gives one sequence its next token
    double row_s = 0;          // and for each further sequence of the step
    size_t rows_max = 16;      // sequences of one step
};

// The share of the window in which an engine of that pace has work: prompts first, one by one, then
// steps for all that are begun. A model for choosing a load; what online really did is measured.
double busy_share(const Scaled& load, const EnginePace& pace);

// The load with the wanted share (0 to 1): `scale.tokens` is found for its window; or, where it is
// not 0, the window for it. The nearest that can be had, if it cannot.
Scaled fit_busy(const Arrivals& unscaled, const EnginePace& pace, double wanted, Scale scale,
                uint32_t context_tokens_max);

} // namespace berth::cli::bench
