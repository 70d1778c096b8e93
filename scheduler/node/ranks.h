// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/board.h"

#include <functional>
#include <vector>

// Inside scheduler/node/ only: instances of several ranks, which are a process each with a part of
// the weights each, on as many devices or on fewer. All else takes them for one.
namespace berth::node {

// What of the model must be resident where it is placed: each rank's part on its device; of one
// process on several devices the whole on each.
std::vector<LoadKey> parts_of(const Instance& i, const policies::ModelSpec& model);
bool waits_for(const Instance& i, const policies::ModelSpec& model, const LoadKey& key);
// Of these, what is not resident.
std::vector<LoadKey> missing_parts(const NodeState& state, const Instance& i,
                                   const policies::ModelSpec& model);
// Of the ranks that share a device, the first: one for each device that it takes.
std::vector<uint32_t> first_ranks(const Instance& i);

// What each of its ranks could have more, on the device that has the least for it.
struct RankRoom {
    uint64_t bytes = UINT64_MAX;
    DeviceId device;
};
RankRoom room_for_each(const Instance& i, Board& board,
                       const std::function<uint64_t(const Board::Row&)>& taken);

} // namespace berth::node
