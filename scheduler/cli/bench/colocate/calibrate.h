// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/colocate/engine_text.h"
#include "scheduler/cli/bench/colocate/http_wire.h"
#include "scheduler/cli/bench/colocate/pace.h"

namespace berth::cli::bench {

// Asks for every number of rows at once, from the most on down, and again: an engine may make
// something ready for each when it first comes. Blocks for a second or some.
Status warm_up(const Endpoint& online, const Asked& asked, uint32_t context_tokens_max);

// A warm online engine's pace while nobody disturbs it: short and long prompts for one token, one
// request for many, and several of those at once. Blocks for a second or some.
Result<EnginePace> measure_pace(const Endpoint& online, const Asked& asked,
                                uint32_t context_tokens_max);

} // namespace berth::cli::bench
