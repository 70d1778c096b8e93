// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/world.h"

#include <functional>
#include <string>

namespace berth::simulate {

using Runner = std::function<Outcome(const Plan&)>;

// The plan that makes the same run again with nothing left to draw but the node's shape.
Plan spelled_out(const Plan& plan, const Outcome& outcome);

// A plan as lines of text, and back:
//
//     seed 17
//     calm 12000000us            when faults cease
//     without i3                 an instance that is left out
//     withhold load of ... dies  a fault that does not happen
//     250000us preempt i1 2 0 #4 what is done from outside
std::string to_text(const Plan& plan);
Result<Plan> plan_from(const std::string& text);

// A failing run made small: instances, stimuli and faults are left out for as long as the same rule
// is still broken. Bounded by a number of runs.
struct Shrunk {
    Plan plan;
    Outcome outcome;
    uint64_t runs = 0;
};
Shrunk shrink(const Plan& failing, const Outcome& outcome, const Runner& run,
              uint64_t runs_max = 600);

// What a person needs to see of it: the rule, the node, the trace, and the last of what happened.
std::string report(const Shrunk& small, const Runner& run);

} // namespace berth::simulate
