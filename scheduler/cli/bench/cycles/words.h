// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/cycles/options.h"

namespace CLI {
class App;
}

namespace berth::cli::bench {

// The command's own options, into `options`, which outlives it.
void add_cycles_words(CLI::App& command, CyclesOptions& options);

} // namespace berth::cli::bench
