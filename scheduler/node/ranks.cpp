// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/ranks.h"

#include <algorithm>

namespace berth::node {

std::vector<LoadKey> parts_of(const Instance& i, const policies::ModelSpec& model) {
    const uint32_t ranks = i.process_alive ? i.ranks : i.spec.ranks;
    std::vector<LoadKey> parts;
    for (size_t n = 0; n < i.devices.size(); ++n)
        parts.push_back(load_key(model, i.devices[n], ranks > 1 ? static_cast<uint32_t>(n) : 0));
    return parts;
}

bool waits_for(const Instance& i, const policies::ModelSpec& model, const LoadKey& key) {
    const std::vector<LoadKey> parts = parts_of(i, model);
    return std::find(parts.begin(), parts.end(), key) != parts.end();
}

std::vector<LoadKey> missing_parts(const NodeState& state, const Instance& i,
                                   const policies::ModelSpec& model) {
    std::vector<LoadKey> parts = parts_of(i, model);
    std::erase_if(parts, [&](const LoadKey& key) { return resident(state, key) != nullptr; });
    return parts;
}

std::vector<uint32_t> first_ranks(const Instance& i) {
    std::vector<uint32_t> firsts;
    for (uint32_t first = 0; first < i.spec.ranks; first += i.spec.ranks_each())
        firsts.push_back(first);
    return firsts;
}

RankRoom room_for_each(const Instance& i, Board& board,
                       const std::function<uint64_t(const Board::Row&)>& taken) {
    RankRoom least;
    for (const DeviceId& device : i.places()) {
        const Board::Row& row = *board.find(device);
        const uint64_t used = taken(row);
        const uint64_t room = row.free_bytes > used ? row.free_bytes - used : 0;
        const uint64_t each = room / i.times_on(device);
        if (each < least.bytes || least.device.empty())
            least = {each, device};
    }
    return least;
}

} // namespace berth::node
