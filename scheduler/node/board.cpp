// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/board.h"

#include "scheduler/node/tiers.h"

#include <algorithm>

namespace berth::node {

bool waits_for_room(const Instance& i) {
    if (i.remove_wanted || i.process_alive)
        return false;
    return i.state == InstanceState::kPending || i.state == InstanceState::kLoading ||
           (i.state == InstanceState::kEvicted && i.held_by == HeldBy::kPlanner);
}

uint64_t sole_weights_bytes(const NodeState& state, const Instance& i, const DeviceId& device) {
    if (!i.weights)
        return 0;
    const WeightSet* set = find_set(state, *i.weights, device);
    if (set == nullptr || set->pinned || set->dropping)
        return 0;
    for (const auto& [id, lease] : state.leases)
        if (lease.set == set->id && lease.device == device && lease.instance != i.name)
            return 0;
    for (const auto& [name, other] : state.instances) {
        if (other.process_alive && other.weights == set->id && other.is_on(device) &&
            name != i.name)
            return 0;
        if (!waits_for_room(other)) // who waits for the set keeps it
            continue;
        const policies::ModelSpec* model = state.documents.find_model(other.spec.model);
        if (model != nullptr && set->keys.contains(load_key(*model, device)))
            return 0;
    }
    return set->bytes;
}

uint64_t leaving_bytes(const NodeState& state, const Instance& i, const DeviceId& device) {
    if (!i.process_alive || i.state == InstanceState::kUnkillable)
        return 0;
    if (i.state == InstanceState::kPreempting && i.desired == Desired::kShrunk)
        return i.grant_bytes > i.grant_bytes_next ? i.grant_bytes - i.grant_bytes_next : 0;
    if (i.state == InstanceState::kPreempting && i.desired == Desired::kSuspended)
        return i.grant_bytes;
    if ((i.state == InstanceState::kPreempting && i.desired == Desired::kEvicted) ||
        i.substate == "Killed")
        return i.grant_bytes + i.overhead_bytes + sole_weights_bytes(state, i, device);
    return 0;
}

Board::Board(NodeState& state) : state_(state) {
    for (const auto& [id, device] : state.devices)
        rows_.emplace_back().device = &device;
    for (auto& [name, i] : state.instances)
        for (const DeviceId& device : i.devices)
            if (Row* row = find(device))
                row->instances.push_back(&i);
    for (const policies::ModelSpec& model : state.documents.models)
        models_[model.name] = &model;
    for (Row& row : rows_)
        compute(row);
}

Board::Row* Board::find(const DeviceId& device) {
    const auto found = std::lower_bound(
        rows_.begin(), rows_.end(), device,
        [](const Row& row, const DeviceId& wanted) { return row.device->id < wanted; });
    return found != rows_.end() && found->device->id == device ? &*found : nullptr;
}

void Board::refresh(const DeviceId& device) {
    Row* row = find(device);
    if (row == nullptr)
        return;
    ++changes_;
    const auto column = static_cast<size_t>(row - rows_.data());
    for (size_t n = column; n < weights_.size(); n += rows_.size())
        weights_[n].reset();
    compute(*row);
}

// The same sums as usage()'s, without its lines.
void Board::compute(Row& row) {
    const Device& device = *row.device;
    row.total_bytes = device.total_bytes;
    row.reserve_bytes = reserve_bytes(state_, device);
    row.overhead_bytes = process_overhead_bytes(state_, device.id);
    row.coming_bytes = 0;
    row.droppable_bytes = 0;
    row.preemptible_bytes.clear();
    uint64_t used = 0;
    for (auto at = state_.weights.lower_bound({device.id, WeightSetId{}});
         at != state_.weights.end() && at->first.first == device.id; ++at) {
        used += at->second.bytes;
        const bool comes = at->second.dropping && at->second.drop_error.empty();
        row.coming_bytes += comes ? at->second.bytes : 0;
        row.droppable_bytes += at->second.pinned ? 0 : at->second.bytes;
    }
    for (const Instance* i : row.instances) {
        used += i->grant_bytes + i->overhead_bytes;
        row.coming_bytes += leaving_bytes(state_, *i, device.id);
        if (!i->process_alive || !preemptible(state_, *i))
            continue;
        const int64_t rank = effective_priority(state_, *i);
        auto at = std::find_if(row.preemptible_bytes.begin(), row.preemptible_bytes.end(),
                               [rank](const auto& one) { return one.first == rank; });
        if (at == row.preemptible_bytes.end())
            at = row.preemptible_bytes.insert(at, {rank, 0});
        at->second += i->grant_bytes + i->overhead_bytes;
    }
    for (const auto& [id, load] : state_.loads) {
        if (load.key.device != device.id)
            continue;
        const uint64_t bytes = placed_bytes(load);
        used += bytes;
        row.coming_bytes += load.state == Load::State::kEnding ? bytes : 0;
    }
    used += row.reserve_bytes;
    row.free_bytes = row.total_bytes > used ? row.total_bytes - used : 0;
}

const policies::ModelSpec* Board::model_of(const Instance& i) const {
    const auto found = models_.find(i.spec.model);
    return found == models_.end() ? nullptr : found->second;
}

const Board::Weights& Board::weights(const policies::ModelSpec& model, const Row& row) {
    const auto index = static_cast<size_t>(&model - state_.documents.models.data());
    if (weights_.empty())
        weights_.resize(state_.documents.models.size() * rows_.size());
    std::optional<Weights>& known =
        weights_[index * rows_.size() + static_cast<size_t>(&row - rows_.data())];
    if (known)
        return *known;
    Weights& here = known.emplace();
    const LoadKey key = load_key(model, row.device->id);
    here.resident = resident(state_, key) != nullptr;
    if (here.resident)
        return here;
    for (const auto& [id, load] : state_.loads) {
        if (!(load.key == key) || !load.copy_to.empty())
            continue;
        here.loading = here.loading || load.state == Load::State::kLoading;
        here.distance = 1;
    }
    if (here.distance == 0)
        here.distance = find_copy(state_, kHostTier, key) != nullptr    ? 2
                        : find_copy(state_, kImageTier, key) != nullptr ? 3
                                                                        : 4;
    if (const auto bytes = state_.known_weight_bytes.find(key);
        bytes != state_.known_weight_bytes.end())
        here.weight_bytes = bytes->second;
    if (const auto bytes = state_.known_load_overhead.find(key);
        bytes != state_.known_load_overhead.end())
        here.loader_bytes = bytes->second;
    return here;
}

bool Board::could_have(const Row& row, uint64_t needed, std::optional<int64_t> below) {
    uint64_t most = row.free_bytes + row.coming_bytes + row.droppable_bytes;
    if (below)
        for (const auto& [rank, bytes] : row.preemptible_bytes)
            most += rank <= *below ? bytes : 0;
    return needed <= most;
}

bool Board::is_leased(const Row& row, const WeightSet& set) const {
    for (const Instance* i : row.instances)
        if (i->process_alive && i->weights == set.id)
            return true;
    return std::any_of(state_.leases.begin(), state_.leases.end(), [&set](const auto& one) {
        return one.second.set == set.id && one.second.device == set.device;
    });
}

uint64_t Board::need_bytes(const Instance& i, const Row& row) {
    const uint64_t process = grant_bytes_min(i.spec) + row.overhead_bytes;
    const policies::ModelSpec* model = model_of(i);
    if (model == nullptr)
        return process;
    const Weights& here = weights(*model, row);
    if (here.resident || here.loading)
        return process;
    return here.weight_bytes + std::max(here.loader_bytes, process);
}

bool Board::is_candidate(const Instance& i, const Row& row) {
    const auto& named = i.spec.devices;
    return named.empty() ||
           std::find(named.begin(), named.end(), row.device->id.value) != named.end();
}

std::vector<Board::Claim> Board::claims_of(const Instance& i) {
    std::vector<Claim> claims;
    const bool stays = i.state == InstanceState::kSuspended || i.state == InstanceState::kLoading;
    for (size_t n = 0; n < rows_.size(); ++n) {
        const Row& row = rows_[n];
        if (stays && !i.devices.empty() ? !i.is_on(row.device->id)
                                        : row.device->cordoned || !is_candidate(i, row))
            continue;
        const uint64_t need =
            i.state == InstanceState::kSuspended ? grant_bytes_min(i.spec) : need_bytes(i, row);
        if (need <= row.most_bytes()) // who can never fit here keeps nobody waiting
            claims.push_back({n, need});
    }
    return claims;
}

void Board::placed(Instance& i) {
    for (const DeviceId& device : i.devices) {
        Row* row = find(device);
        if (row == nullptr)
            continue;
        if (std::find(row->instances.begin(), row->instances.end(), &i) == row->instances.end())
            row->instances.push_back(&i);
        refresh(device);
    }
}

} // namespace berth::node
