// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/own_node.h"

namespace berth::cli::bench {

// A node with a host device, a model of a few bytes, and engines that do nothing but obey
// (idle_engine.cpp). Returns once every engine runs.
Result<std::unique_ptr<OwnNode>> start_idle_node(const std::string& programs, size_t engines);

} // namespace berth::cli::bench
