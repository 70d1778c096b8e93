// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/board.h"

#include "scheduler/node/ranks.h"
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
        for (const DeviceId& device : i.places())
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
        weights_[n].clear();
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
            return i->process_alive && i->leases(set.id, set.device);
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
        const uint64_t bytes = (i->grant_bytes + i->overhead_bytes) * i->times_on(device.id);
        used += bytes;
        row.coming_bytes += leaving_bytes(*i, row);
        if (!i->process_alive || !preemptible(state_, *i))
            continue;
        const int64_t rank = effective_priority(state_, *i);
        auto at =
            std::ranges::find(row.preemptible_bytes, rank, &std::pair<int64_t, uint64_t>::first);
        if (at == row.preemptible_bytes.end())
            at = row.preemptible_bytes.insert(at, {rank, 0});
        at->second += bytes;
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

bool Board::is_sole(const Instance& i, const Row& row, const Resident& here) const {
    const WeightSet& set = *here.set;
    if (set.pinned || set.dropping)
        return false;
    for (const auto& [id, lease] : state_.leases)
        if (lease.set == set.id && lease.device == row.device->id && lease.instance != i.name)
            return false;
    for (const Instance* other : row.instances)
        if (other != &i && other->process_alive && other->leases(set.id, set.device))
            return false;
    for (size_t model : here.models) // who waits for the set keeps it
        if (std::ranges::any_of(waiters_[model],
                                [](const Instance* other) { return waits_for_room(*other); }))
            return false;
    return true;
}

uint64_t Board::sole_weights_bytes(const Instance& i, const Row& row) const {
    uint64_t bytes = 0;
    if (!i.weights.empty())
        for (const Resident& here : row.sets)
            if (i.leases(here.set->id, here.set->device) && is_sole(i, row, here))
                bytes += here.set->bytes;
    return bytes;
}

// What comes free of it there once what is under way on it is done.
uint64_t Board::leaving_bytes(const Instance& i, const Row& row) const {
    if (!i.process_alive || i.state == InstanceState::kUnkillable)
        return 0;
    const uint64_t times = i.times_on(row.device->id);
    if (i.state == InstanceState::kPreempting && i.desired == Desired::kShrunk)
        return i.grant_bytes > i.grant_bytes_next ? (i.grant_bytes - i.grant_bytes_next) * times
                                                  : 0;
    if (i.state == InstanceState::kPreempting && i.desired == Desired::kSuspended)
        return i.grant_bytes * times;
    if ((i.state == InstanceState::kPreempting && i.desired == Desired::kEvicted) ||
        i.substate == "Killed")
        return (i.grant_bytes + i.overhead_bytes) * times + sole_weights_bytes(i, row);
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

const std::vector<Board::Weights>& Board::parts(const policies::ModelSpec& model, const Row& row) {
    const auto index = static_cast<size_t>(&model - state_.documents.models.data());
    if (weights_.empty())
        weights_.resize(state_.documents.models.size() * rows_.size());
    std::vector<Weights>& known =
        weights_[index * rows_.size() + static_cast<size_t>(&row - rows_.data())];
    if (known.empty())
        for (uint32_t rank = 0; rank < model.tensor_parallel; ++rank)
            known.push_back(weights_of(model, row, rank));
    return known;
}

Board::Weights Board::weights_of(const policies::ModelSpec& model, const Row& row,
                                 uint32_t rank) const {
    const LoadKey key = load_key(model, row.device->id, rank);
    Weights here;
    here.first_rank = rank;
    here.resident = std::ranges::any_of(row.sets, [&key](const Resident& one) {
        return !one.set->dropping && one.set->keys.contains(key);
    });
    if (here.resident)
        return here;
    for (const Load* load : row.loads) {
        if (load->key != key || !load->copy_to.empty())
            continue;
        here.loading = here.loading || load->state == Load::State::kLoading;
        here.distance = 1;
    }
    if (here.distance == 0)
        here.distance = find_copy(state_, kHostTier, key) != nullptr    ? 2
                        : find_copy(state_, kImageTier, key) != nullptr ? 3
                                                                        : kFarthest;
    if (const auto bytes = state_.known_weight_bytes.find(key);
        bytes != state_.known_weight_bytes.end())
        here.weight_bytes = bytes->second;
    if (const auto bytes = state_.known_load_overhead.find(key);
        bytes != state_.known_load_overhead.end())
        here.loader_bytes = bytes->second;
    return here;
}

Board::Weights Board::part(const Instance& i, const Row& row, uint32_t first) {
    const std::vector<Weights>& all = parts(*model_of(i), row);
    const size_t end = std::min<size_t>(all.size(), first + i.spec.ranks_each());
    Weights sum;
    sum.first_rank = first;
    sum.resident = sum.loading = true; // unless one is found that is not
    for (size_t rank = first; rank < end; ++rank) {
        const Weights& one = all[rank];
        sum.resident = sum.resident && one.resident;
        sum.loading = sum.loading && (one.resident || one.loading);
        sum.distance = std::max(sum.distance, one.distance);
        if (one.resident || one.loading)
            continue;
        sum.weight_bytes += one.weight_bytes;
        sum.loader_bytes += one.loader_bytes;
    }
    sum.loading = sum.loading && !sum.resident;
    return sum;
}

Board::Weights Board::weights(const Instance& i, const Row& row,
                              const std::vector<uint32_t>& open) {
    if (i.spec.ranks == 1)
        return parts(*model_of(i), row).front();
    if (i.state == InstanceState::kLoading) // it knows its place
        for (size_t rank = 0; rank < i.devices.size(); ++rank)
            if (i.devices[rank] == row.device->id)
                return part(i, row, static_cast<uint32_t>(rank));
    std::optional<Weights> best;
    for (const uint32_t first : open.empty() ? first_ranks(i) : open)
        if (const Weights other = part(i, row, first);
            !best || std::pair(other.distance, other.weight_bytes) <
                         std::pair(best->distance, best->weight_bytes))
            best = other;
    return *best;
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
    return need_bytes(i, row, model_of(i) == nullptr ? Weights{.resident = true} : weights(i, row));
}

uint64_t Board::need_bytes(const Instance& i, const Row& row, const Weights& here) const {
    const uint64_t process = (grant_bytes_min(i) + row.overhead_bytes) * i.spec.ranks_each();
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
        i.state == InstanceState::kSuspended
            ? grant_bytes_min(i) * std::max<uint64_t>(1, i.times_on(row.device->id))
            : need_bytes(i, row);
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
    for (const DeviceId& device : i.places()) {
        Row* row = find(device);
        if (row == nullptr)
            continue;
        if (std::find(row->instances.begin(), row->instances.end(), &i) == row->instances.end())
            row->instances.push_back(&i);
        refresh(device);
    }
}

} // namespace berth::node
