// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/colocate/options.h"

namespace CLI {
class App;
}

namespace berth::cli::bench {

// The command line's options of `colocate`. They write into `options`, which outlives the command.
void add_colocate_words(CLI::App& command, ColocateOptions& options);

} // namespace berth::cli::bench
