// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/event.h"

// What of the node's state outlasts berthd. Records are made of this and of nothing else, in the
// daemon (scheduler/act/record_mapping.h) and under the simulator: what is not named here, the next
// berthd does not know. Pure functions.
namespace berth::node {

// As InstanceRecovered brings it back; `alive` is for who finds the process to say.
InstanceRecovered durable(const Instance& instance);
// Without what the documents say anew.
Rollout durable(const Rollout& rollout);
// As WeightsAdopted brings it back: one path and one model of those it is known by.
WeightsAdopted durable(const WeightSet& set);

// Weights whose descriptors are gone, since the keeper died together with berthd. Who has mapped
// them still has them: their bytes count under a name of their own, so that the same set may be
// loaded again beside, until the last one has ended.
WeightSetId lost_id(const WeightSetId& set);
bool is_lost(const WeightSetId& set);

} // namespace berth::node
