// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/load.h"

#include <string>

namespace berth {

// A plan for people: the checkpoint, then every tensor of one rank, or a line for each of several
// ranks.
std::string plan_text(const LoadPlan& plan);
// For programs: the first rank's tensors in full, and every rank's with their shapes and bytes.
std::string plan_json(const LoadPlan& plan);

} // namespace berth
