// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/played_node.h"

namespace berth::cli::bench {

// What decisions cost on a node of that shape: one figure of all its instances coming at once, one
// of a long stretch of its ordinary life: `events` things happen, each followed by what it brings
// about. The same shape and number give the same events. InvariantBroken if the node's state is not
// sound afterwards.
Result<std::vector<Figure>> decision_figures(const NodeShape& shape, size_t events);

} // namespace berth::cli::bench
