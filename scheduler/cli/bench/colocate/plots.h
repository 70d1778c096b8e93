// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/colocate/phase_result.h"

#include <vector>

namespace berth::cli::bench {

// How latencies are distributed, each phase a line: to the first token, per token, between tokens.
std::string latency_page(const std::vector<PhaseResult>& results);
// Who ran: online requests in flight, and batch's tokens in each tenth of a second.
std::string timeline_page(const PhaseResult& result);

} // namespace berth::cli::bench
