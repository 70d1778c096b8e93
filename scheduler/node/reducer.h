// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/action.h"
#include "scheduler/node/event.h"
#include "scheduler/node/ledger.h"

#include <string>
#include <vector>

namespace berth::node {

// Applies one event and returns what to do, in order. Pure: no I/O, no clock, no logging; the same
// events give the same actions. `now` never runs back.
std::vector<Action> apply(NodeState& state, const Event& event, TimePoint now);

// What is wrong with the state, one sentence each; empty when all that must hold does. For tests
// and `berth doctor`.
std::vector<std::string> check_invariants(const NodeState& state);

// One line for people and for traces: "SendCommand nightly Pause".
std::string describe(const Action& action);

} // namespace berth::node
