// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/own_node.h"

namespace berth::cli::bench {

// How fast a node answers its admin socket: reads alone, reads beside 200 preemptions and
// resumptions a second, and those; beside a server that says the same bytes without thinking.
// Blocks for about three times options.seconds.
Result<std::vector<Figure>> read_figures(const OwnNode& node, const Options& options);

} // namespace berth::cli::bench
