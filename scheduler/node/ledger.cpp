// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/ledger.h"

#include "base/round.h"

namespace berth::node {

namespace {

constexpr uint64_t kGrantStepBytes = 2ULL << 20; // of the coarser backend

// The sets that somebody there has mapped.
std::set<WeightSetId> leased_on(const NodeState& state, const DeviceId& device) {
    std::set<WeightSetId> leased;
    for (const auto& [name, i] : state.instances)
        for (const WeightSetId& set : i.weights)
            if (i.process_alive && i.leases(set, device))
                leased.insert(set);
    for (const auto& [id, lease] : state.leases)
        if (lease.device == device)
            leased.insert(lease.set);
    return leased;
}

void add_weights(const NodeState& state, const DeviceId& device, DeviceUsage& out) {
    const std::set<WeightSetId> leased = leased_on(state, device);
    for (auto at = state.weights.lower_bound({device, WeightSetId{}});
         at != state.weights.end() && at->first.first == device; ++at) {
        const WeightSet& set = at->second;
        const bool idle = !set.pinned && !leased.contains(set.id);
        out.weight_bytes += set.bytes;
        if (idle)
            out.reclaimable_bytes += set.bytes;
        out.lines.push_back(
            {LedgerLine::Kind::kWeights, set.id.value, set.bytes, GrantState::kNone, idle});
    }
}

void add_instances(const NodeState& state, const DeviceId& device, DeviceUsage& out) {
    for (const auto& [name, i] : state.instances) {
        const uint64_t times = i.times_on(device);
        const uint64_t grant = i.grant_bytes * times, overhead = i.overhead_bytes * times;
        if (grant > 0) {
            const bool reclaimable =
                preemptible(state, i) && i.grant_state != GrantState::kReserved;
            out.grant_bytes += grant;
            if (i.grant_state == GrantState::kReserved)
                out.reserved_bytes += grant;
            if (i.grant_state == GrantState::kUnconfirmed)
                out.unconfirmed_bytes += grant;
            if (reclaimable)
                out.reclaimable_bytes += grant;
            out.lines.push_back(
                {LedgerLine::Kind::kGrant, name.value, grant, i.grant_state, reclaimable});
        }
        if (overhead > 0) {
            out.overhead_bytes += overhead;
            out.lines.push_back(
                {LedgerLine::Kind::kOverhead, name.value, overhead, GrantState::kNone, false});
        }
    }
}

void add_loads(const NodeState& state, const DeviceId& device, DeviceUsage& out) {
    for (const auto& [id, load] : state.loads) {
        const uint64_t bytes = placed_bytes(load);
        if (load.key.device != device || bytes == 0)
            continue;
        out.loader_bytes += bytes;
        out.lines.push_back({LedgerLine::Kind::kLoader,
                             load.holder.empty()
                                 ? "load-" + std::to_string(static_cast<uint64_t>(id))
                                 : load.holder,
                             bytes, GrantState::kNone, false});
    }
}

} // namespace

DeviceUsage usage(const NodeState& state, const DeviceId& device) {
    DeviceUsage out;
    const auto found = state.devices.find(device);
    if (found != state.devices.end()) {
        out.total_bytes = found->second.total_bytes;
        out.reserve_bytes = reserve_bytes(state, found->second);
    }
    add_weights(state, device, out);
    add_instances(state, device, out);
    add_loads(state, device, out);
    const uint64_t taken = out.used_bytes() + out.reserve_bytes;
    out.free_bytes = out.total_bytes > taken ? out.total_bytes - taken : 0;
    return out;
}

std::string room_words(const NodeState& state, const DeviceId& device, uint64_t available) {
    const DeviceUsage now = usage(state, device);
    std::string words = format_bytes(available) + " are free of " + format_bytes(now.total_bytes) +
                        " (" + format_bytes(now.reserve_bytes) + " of these are the reserve";
    if (available < now.free_bytes)
        words += ", " + format_bytes(now.free_bytes - available) + " are kept for others that wait";
    words += ")";
    std::string owners;
    for (const LedgerLine& line : now.lines)
        if (line.reclaimable)
            owners +=
                (owners.empty() ? "" : ", ") +
                std::string(line.kind == LedgerLine::Kind::kWeights ? "weights/" : "instance/") +
                line.owner + " " + format_bytes(line.bytes);
    return words + "; reclaimable: " + (owners.empty() ? "nothing" : owners);
}

uint64_t placed_bytes(const Load& load) {
    if (!load.placed)
        return 0;
    if (!load.copy_to.empty()) // its weights count in the tier
        return load.overhead_bytes;
    return load.overhead_bytes + (load.sealed ? 0 : load.weight_bytes);
}

const WeightSet* resident(const NodeState& state, const LoadKey& key) {
    for (const auto& [id, set] : state.weights)
        if (set.device == key.device && !set.dropping && set.keys.contains(key))
            return &set;
    return nullptr;
}

const WeightSet* find_set(const NodeState& state, const WeightSetId& set, const DeviceId& device) {
    const auto found = state.weights.find({device, set});
    return found == state.weights.end() ? nullptr : &found->second;
}

bool is_load_of(const policies::ModelSpec& model, const LoadKey& key) {
    return key.path == model.path && key.dtype == model.dtype &&
           key.quantization == model.quantization && key.ranks == model.tensor_parallel;
}

LoadKey load_key(const policies::ModelSpec& model, const DeviceId& device, uint32_t rank) {
    return LoadKey{model.path,         model.dtype, device,
                   model.quantization, rank,        model.tensor_parallel};
}

std::vector<std::string> lease_holders(const NodeState& state, const WeightSet& set) {
    std::vector<std::string> holders;
    for (const auto& [name, i] : state.instances)
        if (i.process_alive && i.leases(set.id, set.device))
            holders.push_back(name.value);
    for (const auto& [id, lease] : state.leases)
        if (lease.set == set.id && lease.device == set.device)
            holders.push_back(lease.holder);
    return holders;
}

uint64_t grant_bytes_min(const policies::InstanceSpec& spec) {
    return round_up(
        std::max(spec.memory_request_bytes, std::min(spec.memory_limit_bytes, kGrantBytesMin)),
        kGrantStepBytes);
}

uint64_t grant_bytes_min(const Instance& instance) {
    const uint64_t least = grant_bytes_min(instance.spec);
    if (!instance.floor_only)
        return least;
    const uint64_t floor = std::max(kGrantBytesMin, instance.grant_bytes_least);
    return std::min(least, round_up(floor, kGrantStepBytes));
}

uint64_t grant_bytes_max(const policies::InstanceSpec& spec) {
    return std::max(round_up(spec.memory_limit_bytes, kGrantStepBytes), grant_bytes_min(spec));
}

uint64_t grant_bytes_whole(uint64_t bytes) {
    return bytes / kGrantStepBytes * kGrantStepBytes;
}

uint64_t reserve_bytes(const NodeState& state, const Device& device) {
    return state.policy.memory.device_reserve_bytes.value_or(
        device.kind == DeviceKind::kCuda ? kCudaReserveBytes : 0);
}

uint64_t process_overhead_bytes(const NodeState& state, const DeviceId& device) {
    const auto found = state.devices.find(device);
    return found != state.devices.end() && found->second.kind == DeviceKind::kCuda
               ? kCudaOverheadBytes
               : 0;
}

bool preemptible(const NodeState& state, const Instance& instance) {
    const policies::PriorityClass* one = state.policy.find_class(instance.spec.class_name);
    return one == nullptr || one->preemptible;
}

} // namespace berth::node
