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

std::vector<DeviceId> devices_by_rank(const Instance& i, std::vector<Board::Row*> rows,
                                      Board& board) {
    std::vector<DeviceId> devices;
    if (i.spec.ranks == 1) {
        for (const Board::Row* row : rows)
            devices.push_back(row->device->id);
        return devices;
    }
    std::ranges::sort(rows, {}, [](const Board::Row* row) { return row->device->id; });
    const uint32_t each = i.spec.ranks_each();
    devices.resize(i.spec.ranks);
    std::vector<bool> given(rows.size(), false);
    // The nearest first: what is resident must not lose its place to what has to be loaded anyway.
    for (int distance = 0; distance <= Board::kFarthest; ++distance)
        for (size_t n = 0; n < rows.size(); ++n)
            for (uint32_t first = 0; first + each <= i.spec.ranks && !given[n]; first += each) {
                if (!devices[first].empty() || board.part(i, *rows[n], first).distance != distance)
                    continue;
                given[n] = true;
                std::fill_n(devices.begin() + first, each, rows[n]->device->id);
            }
    return devices;
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
