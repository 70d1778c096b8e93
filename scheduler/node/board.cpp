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

Board::Board(NodeState& state) : state_(state) {
    const auto& models = state.documents.models;
    waiters_.resize(models.size());
    for (size_t n = 0; n < models.size(); ++n) {
        models_[models[n].name] = n;
        by_path_[models[n].path].push_back(n);
    }
    for (const auto& [id, device] : state.devices)
        rows_.emplace_back().device = &device;
    for (auto& [name, i] : state.instances) {
        for (const DeviceId& device : i.devices)
            if (Row* row = find(device))
                row->instances.push_back(&i);
        if (!waits_for_room(i) && !waits(i))
            continue;
        const std::optional<size_t> model = model_index(i);
        (model ? waiters_[*model] : modelless_waiters_).push_back(&i);
    }
    for (std::vector<Instance*>& all : waiters_)
        std::sort(all.begin(), all.end(), [&state](const Instance* a, const Instance* b) {
            return comes_before(state, *a, *b);
        });
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
    row.coming_bytes = row.idle_bytes = row.droppable_bytes = 0;
    row.preemptible_bytes.clear();
    row.sets.clear();
    row.loads.clear();
    uint64_t used = 0;
    for (auto at = state_.weights.lower_bound({device.id, WeightSetId{}});
         at != state_.weights.end() && at->first.first == device.id; ++at) {
        const WeightSet& set = at->second;
        Resident& here = row.sets.emplace_back();
        here.set = &set;
        here.leased = std::ranges::any_of(row.instances, [&set](const Instance* i) {
            return i->process_alive && i->weights == set.id;
        });
        for (const LoadKey& key : set.keys)
            if (const auto found = by_path_.find(key.path); found != by_path_.end())
                for (size_t model : found->second)
                    if (is_load_of(state_.documents.models[model], key))
                        here.models.push_back(model);
    }
    for (const auto& [id, lease] : state_.leases)
        for (Resident& here : row.sets)
            here.leased |= lease.set == here.set->id && lease.device == device.id;
    for (const Resident& here : row.sets) {
        const WeightSet& set = *here.set;
        used += set.bytes;
        row.coming_bytes += set.dropping && set.drop_error.empty() ? set.bytes : 0;
        row.droppable_bytes += set.pinned ? 0 : set.bytes;
        row.idle_bytes += set.pinned || here.leased ? 0 : set.bytes;
    }
    for (const Instance* i : row.instances) {
        used += i->grant_bytes + i->overhead_bytes;
        row.coming_bytes += leaving_bytes(*i, row);
        if (!i->process_alive || !preemptible(state_, *i))
            continue;
        const int64_t rank = effective_priority(state_, *i);
        auto at =
            std::ranges::find(row.preemptible_bytes, rank, &std::pair<int64_t, uint64_t>::first);
        if (at == row.preemptible_bytes.end())
            at = row.preemptible_bytes.insert(at, {rank, 0});
        at->second += i->grant_bytes + i->overhead_bytes;
    }
    for (const auto& [id, load] : state_.loads) {
        if (load.key.device != device.id)
            continue;
        row.loads.push_back(&load);
        const uint64_t bytes = placed_bytes(load);
        used += bytes;
        row.coming_bytes += load.state == Load::State::kEnding ? bytes : 0;
    }
    used += row.reserve_bytes;
    row.free_bytes = row.total_bytes > used ? row.total_bytes - used : 0;
}

uint64_t Board::sole_weights_bytes(const Instance& i, const Row& row) const {
    if (!i.weights)
        return 0;
    const auto here = std::ranges::find_if(
        row.sets, [&i](const Resident& one) { return one.set->id == *i.weights; });
    if (here == row.sets.end() || here->set->pinned || here->set->dropping)
        return 0;
    for (const auto& [id, lease] : state_.leases)
        if (lease.set == *i.weights && lease.device == row.device->id && lease.instance != i.name)
            return 0;
    for (const Instance* other : row.instances)
        if (other != &i && other->process_alive && other->weights == i.weights)
            return 0;
    for (size_t model : here->models) // who waits for the set keeps it
        if (std::ranges::any_of(waiters_[model],
                                [](const Instance* other) { return waits_for_room(*other); }))
            return 0;
    return here->set->bytes;
}

// What comes free of it there once what is under way on it is done.
uint64_t Board::leaving_bytes(const Instance& i, const Row& row) const {
    if (!i.process_alive || i.state == InstanceState::kUnkillable)
        return 0;
    if (i.state == InstanceState::kPreempting && i.desired == Desired::kShrunk)
        return i.grant_bytes > i.grant_bytes_next ? i.grant_bytes - i.grant_bytes_next : 0;
    if (i.state == InstanceState::kPreempting && i.desired == Desired::kSuspended)
        return i.grant_bytes;
    if ((i.state == InstanceState::kPreempting && i.desired == Desired::kEvicted) ||
        i.substate == "Killed")
        return i.grant_bytes + i.overhead_bytes + sole_weights_bytes(i, row);
    return 0;
}

std::optional<size_t> Board::model_index(const Instance& i) const {
    const auto found = models_.find(i.spec.model);
    return found == models_.end() ? std::nullopt : std::optional(found->second);
}

const policies::ModelSpec* Board::model_of(const Instance& i) const {
    const std::optional<size_t> index = model_index(i);
    return index ? &state_.documents.models[*index] : nullptr;
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
    here.resident = std::ranges::any_of(row.sets, [index](const Resident& one) {
        return !one.set->dropping && std::ranges::find(one.models, index) != one.models.end();
    });
    if (here.resident)
        return here;
    for (const Load* load : row.loads) {
        if (!is_load_of(model, load->key) || !load->copy_to.empty())
            continue;
        here.loading = here.loading || load->state == Load::State::kLoading;
        here.distance = 1;
    }
    const LoadKey key = load_key(model, row.device->id);
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
    uint64_t most =
        row.free_bytes + row.coming_bytes + (below ? row.droppable_bytes : row.idle_bytes);
    if (below)
        for (const auto& [rank, bytes] : row.preemptible_bytes)
            most += rank <= *below ? bytes : 0;
    return needed <= most;
}

uint64_t Board::need_bytes(const Instance& i, const Row& row) {
    const uint64_t process = grant_bytes_min(i) + row.overhead_bytes;
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

// Nothing: it will not be there.
std::optional<uint64_t> Board::claim_on(const Instance& i, const Row& row) {
    const bool stays = i.state == InstanceState::kSuspended || i.state == InstanceState::kLoading;
    if (stays && !i.devices.empty() ? !i.is_on(row.device->id)
                                    : row.device->cordoned || !is_candidate(i, row))
        return std::nullopt;
    const uint64_t need =
        i.state == InstanceState::kSuspended ? grant_bytes_min(i) : need_bytes(i, row);
    if (need > row.most_bytes()) // who can never fit here keeps nobody waiting
        return std::nullopt;
    return need;
}

std::vector<Board::Claim> Board::claims_of(const Instance& i) {
    std::vector<Claim> claims;
    for (size_t n = 0; n < rows_.size(); ++n)
        if (const std::optional<uint64_t> bytes = claim_on(i, rows_[n]))
            claims.push_back({n, *bytes});
    return claims;
}

uint64_t Board::spoken_for(const Row& row, const Instance& taker, bool by_lower) {
    uint64_t bytes = 0;
    const auto add = [&](const std::vector<Instance*>& all) {
        for (const Instance* i : all)
            if (i != &taker && waits(*i) && comes_before(state_, taker, *i) == by_lower)
                bytes += claim_on(*i, row).value_or(0);
    };
    for (const std::vector<Instance*>& all : waiters_)
        add(all);
    add(modelless_waiters_);
    return bytes;
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
