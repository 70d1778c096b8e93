// SPDX-License-Identifier: Apache-2.0
#include "cache/load/ring.h"

#include <utility>

namespace berth {

Result<RingCopier> RingCopier::open(const StreamJob& job, const StreamShape& shape,
                                    Exchange& exchange) {
    RingCopier copier(job, exchange);
    copier.uses_.resize(static_cast<size_t>(shape.slots));
    for (const RankTarget& target : job.targets) {
        size_t index = 0;
        while (index < copier.devices_.size() && copier.devices_[index].device != target.device)
            ++index;
        copier.device_of_rank_.push_back(index);
        if (index < copier.devices_.size())
            continue;
        PerDevice on;
        on.device = target.device;
        on.lanes.resize(Device::kLanes);
        if (shape.lane_bytes > 0) {
            BERTH_ASSIGN(on.kernels,
                         DeviceKernels::create(
                             *target.device, static_cast<uint32_t>(job.checkpoint.tensors.size())));
            for (Lane& lane : on.lanes) {
                BERTH_ASSIGN(lane.staging, target.device->create_device_buffer(shape.lane_bytes));
            }
        }
        copier.devices_.push_back(std::move(on));
    }
    return copier;
}

Result<bool> RingCopier::round() {
    if (auto work = exchange_.take_ready()) {
        BERTH_TRY(start(*work));
        return true;
    }
    return settle_oldest();
}

Status RingCopier::start(const Exchange::Work& work) {
    const Tile& tile = job_.plan.tiles[work.tile];
    // One use is ours until all its copies are under way.
    uses_[static_cast<size_t>(work.slot)] = 1;
    for (const Placement& placement : tile.placements)
        BERTH_TRY(start(tile, placement, work));
    if (--uses_[static_cast<size_t>(work.slot)] == 0)
        exchange_.give_slot_back(work.slot);
    return {};
}

Status RingCopier::start(const Tile& tile, const Placement& placement, const Exchange::Work& work) {
    PerDevice& on = devices_[device_of_rank_[placement.rank]];
    size_t index = std::exchange(on.next, (on.next + 1) % on.lanes.size());
    BERTH_TRY(settle(on, index));
    Lane& lane = on.lanes[index];
    lane.slot = work.slot;
    ++uses_[static_cast<size_t>(work.slot)];
    int number = static_cast<int>(index);
    bool quantises = placement.transform == Transform::kQuantise;
    std::byte* segment = job_.targets[placement.rank].data;
    std::byte* to = quantises ? lane.staging.data() : segment + placement.to;
    const std::byte* from = work.bytes.data() + placement.from;
    if (placement.is_contiguous())
        BERTH_TRY(on.device->start_copy_to_device(number, to, from, placement.source_bytes()));
    else
        BERTH_TRY(on.device->start_copy_2d_to_device(
            number, to, placement.width, from, placement.pitch, placement.width, placement.rows));
    if (!quantises)
        return {};
    uint64_t columns = placement.width / (bits_of(tile.dtype) / 8);
    return on.kernels->start_quantise(
        number, {tile.dtype, to, placement.width, placement.rows, columns, segment + placement.to,
                 segment + placement.scales_to, static_cast<uint32_t>(tile.source)});
}

Status RingCopier::settle(PerDevice& on, size_t lane) {
    if (on.lanes[lane].slot == kNoSlot)
        return {};
    BERTH_TRY(on.device->wait_lane(static_cast<int>(lane)));
    int slot = std::exchange(on.lanes[lane].slot, kNoSlot);
    if (--uses_[static_cast<size_t>(slot)] == 0)
        exchange_.give_slot_back(slot);
    return {};
}

Result<bool> RingCopier::settle_oldest() {
    for (PerDevice& on : devices_)
        for (size_t step = 0; step < on.lanes.size(); ++step) {
            size_t lane = (on.next + step) % on.lanes.size();
            if (on.lanes[lane].slot == kNoSlot)
                continue;
            BERTH_TRY(settle(on, lane));
            return true;
        }
    return false;
}

Status RingCopier::settle_all() {
    // One that fails does not excuse from waiting for the others: they still read from the ring.
    Status first;
    for (PerDevice& on : devices_)
        for (size_t lane = 0; lane < on.lanes.size(); ++lane)
            if (Status settled = settle(on, lane); !settled && first)
                first = settled;
    return first;
}

Status RingCopier::finish() {
    for (PerDevice& on : devices_) {
        BERTH_TRY(on.device->synchronize());
        if (!on.kernels)
            continue;
        BERTH_ASSIGN(std::vector<uint64_t> counts, on.kernels->non_finite());
        for (const Tile& tile : job_.plan.tiles)
            if (counts[tile.source] > 0)
                return not_finite(job_, tile, counts[tile.source]);
    }
    return {};
}

} // namespace berth
