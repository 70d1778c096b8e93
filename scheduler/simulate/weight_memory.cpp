// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/weight_memory.h"

#include "scheduler/node/durable.h"

#include <algorithm>
#include <vector>

namespace berth::simulate {

void WeightMemory::keep(const Place& place, Kept set) {
    if (kept_.contains(place))
        stage_.wrong("weights-changed", "weight set " + place.second.value +
                                            " is kept a second time on " + place.first.value);
    set.memory = ++last_;
    memories_[set.memory] = {place, set.bytes, true, false, !unrecorded_.contains(place)};
    kept_[place] = std::move(set);
    settle(last_);
}

void WeightMemory::pin(const Place& place, bool pinned) {
    if (const auto found = kept_.find(place); found != kept_.end())
        found->second.pinned = pinned;
}

// It may be kept later than what is to be written of it is written, or is not.
void WeightMemory::set_recorded(const Place& place, bool recorded) {
    if (recorded)
        unrecorded_.erase(place);
    else
        unrecorded_.insert(place);
    if (const auto found = kept_.find(place); found != kept_.end())
        memories_.at(found->second.memory).is_recorded = recorded;
}

// Those of whom berthd knows must not be left with what it thinks is free.
void WeightMemory::drop(const Place& place) {
    std::vector<uint64_t> dropped;
    for (auto& [number, memory] : memories_) {
        const bool is_it = memory.is_kept
                               ? memory.place == place
                               : memory.is_counted && memory.place.first == place.first &&
                                     node::lost_id(memory.place.second) == place.second;
        if (!is_it)
            continue;
        for (const auto& [id, one] : holders_)
            if (one.memory == number && one.is_known && !stage_.records_lost)
                stage_.wrong("dropped-under-lease", "weight set " + place.second.value +
                                                        " is dropped on " + place.first.value +
                                                        " while " + one.name + " maps it");
        memory.is_kept = memory.is_counted = false;
        memory.was_let_go = true;
        dropped.push_back(number);
    }
    kept_.erase(place);
    for (const uint64_t number : dropped)
        settle(number);
}

void WeightMemory::keeper_ended() {
    stage_.note("the keeper dies");
    ++keeper_;
    kept_.clear();
    std::vector<uint64_t> left;
    for (auto& [number, memory] : memories_) {
        memory.is_kept = false;
        memory.was_let_go = memory.was_let_go || !memory.is_recorded;
        left.push_back(number);
    }
    for (const uint64_t number : left)
        settle(number);
}

void WeightMemory::berthd_ended() {
    std::vector<uint64_t> forgotten;
    for (auto& [number, memory] : memories_)
        if (std::exchange(memory.is_counted, false))
            forgotten.push_back(number);
    for (const uint64_t number : forgotten)
        settle(number);
}

void WeightMemory::count_lost(const Place& place) {
    std::vector<uint64_t> counted;
    for (auto& [number, memory] : memories_)
        if (!memory.is_kept && !memory.was_let_go && memory.place.first == place.first &&
            node::lost_id(memory.place.second) == node::lost_id(place.second)) {
            memory.is_counted = true;
            counted.push_back(number);
        }
    for (const uint64_t number : counted)
        settle(number);
}

void WeightMemory::forget_uncounted() {
    for (auto& [number, memory] : memories_)
        memory.was_let_go = memory.was_let_go || (!memory.is_kept && !memory.is_counted);
}

uint64_t WeightMemory::memory_of(const node::WeightSetId& set, const node::DeviceId& device) const {
    const auto found = kept_.find({device, set});
    return found == kept_.end() ? 0 : found->second.memory;
}

void WeightMemory::map(uint64_t holder, uint64_t memory, std::string name, bool is_known) {
    holders_[holder] = {memory, std::move(name), is_known};
}

void WeightMemory::unmap(uint64_t holder) {
    const auto found = holders_.find(holder);
    if (found == holders_.end())
        return;
    const uint64_t memory = found->second.memory;
    holders_.erase(found);
    settle(memory);
}

void WeightMemory::set_known(uint64_t holder, bool is_known) {
    if (const auto found = holders_.find(holder); found != holders_.end())
        found->second.is_known = is_known;
}

const WeightMemory::Holder* WeightMemory::holder(uint64_t number) const {
    const auto found = holders_.find(number);
    return found == holders_.end() ? nullptr : &found->second;
}

const WeightMemory::Memory* WeightMemory::find(uint64_t memory) const {
    const auto found = memories_.find(memory);
    return found == memories_.end() ? nullptr : &found->second;
}

bool WeightMemory::is_mapped(uint64_t memory) const {
    return std::ranges::any_of(holders_,
                               [memory](const auto& one) { return one.second.memory == memory; });
}

// What the keeper has, or who is known to have it, takes its bytes. What neither has is free; what
// is mapped by one of whom berthd has not heard yet is left out: it cannot be counted before.
void WeightMemory::settle(uint64_t number) {
    Memory& memory = memories_.at(number);
    const bool stays = memory.is_kept || is_mapped(number);
    const node::DeviceId device = memory.place.first;
    const std::string kept = "weights " + memory.place.second.value;
    const std::string lost = kept + " without keeper (" + std::to_string(number) + ")";
    stage_.account.set(device, lost,
                       stays && !memory.is_kept && memory.is_counted ? memory.bytes : 0);
    const auto now = kept_.find(memory.place);
    if (now == kept_.end())
        stage_.account.set(device, kept, 0);
    else if (memory.is_kept)
        stage_.account.set(device, kept, memory.bytes);
    if (!stays)
        memories_.erase(number);
}

} // namespace berth::simulate
