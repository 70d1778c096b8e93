// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/load.h"

#include <string>
#include <vector>

namespace berth {

// A plan for people: what was found, then a table with a line for each tensor.
std::string plan_text(const LoadPlan& plan);
// The same for programs: one JSON object.
std::string plan_json(const LoadPlan& plan);

// What a load by hand came to.
struct LoadOutcome {
    const LoadPlan& plan;
    const LoadedSet& set;
    bool verified = false;
    std::vector<std::string> different; // tensors whose bytes are not their checksum's
};
std::string outcome_text(const LoadOutcome& outcome);
std::string outcome_json(const LoadOutcome& outcome);

} // namespace berth
