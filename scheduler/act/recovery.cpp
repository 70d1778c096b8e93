// SPDX-License-Identifier: Apache-2.0
// The actor's part that finds, at start, what an earlier berthd left: descriptors with the keeper,
// live processes, operations under way. No byte of a checkpoint and none of a weight set is read.
#include "scheduler/act/node_actor.h"

#include "base/json.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "engine_shim/protocol/published.h"
#include "scheduler/act/deep_hash.h"
#include "scheduler/act/find_process.h"
#include "scheduler/act/rank_name.h"
#include "scheduler/act/record_mapping.h"
#include "scheduler/act/rollout_record.h"
#include "scheduler/node/durable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace berth {

namespace {

constexpr const char* kBootKey = "bootId";
constexpr size_t kBootIdMax = 64;
constexpr const char* kKeeperKey = "keeper";

const std::string* find_meta(const StoredState& stored, std::string_view key) {
    const auto found = std::ranges::find(stored.meta, key, &MetaRecord::key);
    return found == stored.meta.end() ? nullptr : &found->value;
}

// Which rank's part of how many it is: the document says, whatever became of the record.
void take_slicing(node::WeightsAdopted& event, const std::string& document) {
    const auto parsed = json::parse(document, "a fingerprint");
    const json::value* slicing =
        parsed && parsed->is_object() ? parsed->get_object().if_contains("slicing") : nullptr;
    if (slicing == nullptr || !slicing->is_object())
        return;
    json::Reader reader(*slicing, "a fingerprint's slicing");
    reader.allow_unknown();
    event.ranks = static_cast<uint32_t>(reader.unsigned_integer("tp", 1));
    event.rank = static_cast<uint32_t>(reader.unsigned_integer("rank", 0));
}

void find_by_token(node::ProcessRef& process, const std::string& token_sha256) {
    if (token_sha256.empty())
        return;
    if (const auto found = find_process_by_token(token_sha256))
        process = {found->pid, found->start_ticks};
}

} // namespace

Result<Recovery> NodeActor::recover(const std::vector<node::DeviceSeen>& devices,
                                    StoredState stored) {
    Recovery recovery;
    wall_clock_.start();
    for (node::DeviceSeen device : devices) {
        for (const MetaRecord& record : stored.meta)
            take_cordon(device, record);
        context_.post(std::move(device));
    }
    BERTH_ASSIGN(std::vector<KeptEntry> entries, keeper_.start());
    adopt_entries(std::move(entries), stored, recovery);
    adopt_images(stored, recovery);
    for (const MetaRecord& record : stored.meta)
        if (record.key.starts_with(kDeepHashKey))
            context_.deep_hashes[record.key.substr(std::strlen(kDeepHashKey))] = record.value;
    for (const node::DeviceSeen& device : devices) {
        if (context_.gates.find(device.id) != nullptr)
            continue;
        BERTH_TRY(context_.gates.open(device.id, UniqueFd()));
        put_gate(device.id);
    }
    adopt_lost(stored);
    recover_instances(stored, recovery);
    recover_operations(stored, recovery);
    recover_rollouts(stored);
    return recovery;
}

void NodeActor::adopt_entries(std::vector<KeptEntry> entries, const StoredState& stored,
                              Recovery& recovery) {
    for (KeptEntry& entry : entries) {
        std::string key = entry.key;
        if (is_resident_set_key(key)) {
            adopt_set(std::move(entry), stored, recovery);
        } else if (key.starts_with("gate/") && entry.fds.size() == 1) {
            node::DeviceId device(key.substr(5));
            if (auto opened = context_.gates.open(device, std::move(entry.fds.front())); !opened)
                log::warn("gate page of {}: {}, making a new one", device.value,
                          opened.error().message);
        } else if (key.starts_with(ServiceBook::kKeyPrefix)) {
            if (auto adopted = services_.adopt(std::move(entry)); !adopted)
                log::warn("the keeper's '{}': {}, opening it anew", key, adopted.error().message);
        } else {
            log::warn("the keeper holds '{}', which this berthd does not know, ignoring", key);
        }
    }
}

void NodeActor::adopt_set(KeptEntry entry, const StoredState& stored, Recovery& recovery) {
    auto set = resident_set_from(entry.key, entry.meta, std::move(entry.fds));
    if (!set) {
        log::error("the keeper's '{}': {}, ignoring", entry.key, set.error().message);
        return;
    }
    const bool is_copy = set->device == node::kHostTier.value;
    if (!is_copy && !context_.environments.contains(node::DeviceId(set->device))) {
        log::warn("weights id={} lie on device {}, which this node no longer has: left with the "
                  "keeper",
                  set->id, set->device);
        return;
    }
    node::WeightsAdopted event;
    for (const PlacementRecord& record : stored.placements)
        if (record.weight_set == set->id && record.device == set->device)
            event = adopted_from(record);
    // The keeper's word goes before the record's, which may be missing.
    event.id = node::WeightSetId(set->id);
    event.fingerprint = set->fingerprint;
    event.device = node::DeviceId(set->device);
    event.bytes = set->bytes();
    if (protocol::is_published_document(set->fingerprint_json)) {
        // Its key leads to it, not the path that it was made from.
        const node::LoadKey key = node::published_key(event.id, event.device);
        event.path = key.path;
        event.dtype = key.dtype;
    }
    take_slicing(event, set->fingerprint_json);
    if (event.path.empty())
        event.path = set->path;
    if (event.model.empty())
        event.model = node::ModelName(set->model);
    event.pinned = event.pinned || set->pinned;
    recovery.copies += is_copy ? 1 : 0;
    recovery.weight_sets += is_copy ? 0 : 1;
    recovery.weight_bytes += is_copy ? 0 : event.bytes;
    if (auto added = context_.catalogue_of(set->device).add(std::move(*set)); !added) {
        log::error("weights id={}: {}, ignoring", event.id.value, added.error().message);
        return;
    }
    context_.post(std::move(event));
}

void NodeActor::adopt_images(const StoredState& stored, Recovery& recovery) {
    FoundImages found = find_images(stored);
    for (node::WeightsAdopted& image : found.whole) {
        ++recovery.copies;
        context_.post(std::move(image));
    }
    for (std::string& file : found.unseen)
        tiers_.leave_alone(std::move(file));
}

// Nothing that was mapped outlasts the machine's own end.
bool NodeActor::is_same_boot(const StoredState& stored) {
    auto boot = read_file("/proc/sys/kernel/random/boot_id", kBootIdMax);
    if (!boot)
        return true;
    const std::string* before = find_meta(stored, kBootKey);
    if (before != nullptr && *before == *boot)
        return true;
    loop_.record(MetaRecord{kBootKey, *boot});
    return before == nullptr;
}

void NodeActor::record_keeper() {
    loop_.record(MetaRecord{kKeeperKey, keeper_.identity()});
}

// Placements that lead nowhere. Of most the set went with the one who was about to say so. But what
// an earlier keeper has taken with it, those still have who had mapped it: the node counts it. What
// was lost before comes first: what is lost now under the same name is added to that, in the
// transaction that ends its own record. Those on a device that is not configured now are with the
// keeper, and those of files may come back.
void NodeActor::adopt_lost(const StoredState& stored) {
    const bool same_boot = is_same_boot(stored);
    const std::string* keeper = find_meta(stored, kKeeperKey);
    const bool same_keeper = keeper != nullptr && *keeper == keeper_.identity();
    for (const bool again : {true, false})
        for (const PlacementRecord& record : stored.placements)
            if (node::is_lost(node::WeightSetId(record.weight_set)) == again)
                adopt_lost(stored, record, same_boot, same_keeper);
    // Behind all that was found: a berthd that dies before finds the keeper new again.
    if (!same_keeper)
        record_keeper();
}

void NodeActor::adopt_lost(const StoredState& stored, const PlacementRecord& record, bool same_boot,
                           bool same_keeper) {
    const node::DeviceId device(record.device);
    const bool is_copy = device == node::kHostTier;
    if ((!is_copy && !context_.environments.contains(device)) ||
        context_.catalogue_of(record.device).find(record.weight_set, record.device) != nullptr)
        return;
    node::WeightsAdopted lost = adopted_from(record);
    lost.lost = true;
    const bool again = node::is_lost(lost.id);
    const bool may_be_mapped =
        same_boot && lost.bytes > 0 &&
        (again || !same_keeper ||
         std::ranges::any_of(stored.instances, [&record](const InstanceRecord& one) {
             return one.weight_set.find(record.weight_set) !=
                    std::string::npos; // one of its ranks'
         }));
    if (!is_copy && may_be_mapped)
        context_.post(std::move(lost)); // it gets a record of its own
    if (is_copy || !again || !same_boot)
        loop_.record(ForgetPlacement{record.weight_set, record.device});
}

void NodeActor::recover_instances(const StoredState& stored, Recovery& recovery) {
    for (const InstanceRecord& record : stored.instances) {
        auto recovered = instance_from(record);
        if (!recovered) {
            log::error("{}; starting it as new", recovered.error().message);
            continue;
        }
        node::InstanceRecovered& event = recovered->event;
        // Its start was on record; whether it was started before the one who was to had died, its
        // token tells. A process that nobody started is not waited for.
        if (event.process.pid == 0) {
            find_by_token(event.process, event.token_sha256);
            const bool may_be_coming = event.state == node::InstanceState::kStarting ||
                                       event.state == node::InstanceState::kPreempting;
            event.never_started = may_be_coming && !event.process && !has_unborn_sibling();
        }
        for (node::RankProcess& one : event.others) {
            if (!one.process)
                find_by_token(one.process, one.token_sha256);
            event.never_started = event.never_started && !one.process;
        }
        std::vector<uint32_t> gone;
        if (event.ranks > 1)
            gone = adopt_ranks(event);
        else
            adopt_process(event);
        for (uint32_t rank = 0; rank < event.devices.size(); ++rank)
            if (rank < recovered->gate_slots.size())
                context_.gates.restore(rank_name(event.name, rank), event.devices[rank],
                                       recovered->gate_slots[rank]);
        ++recovery.instances;
        recovery.instances_alive += event.alive ? 1 : 0;
        context_.post(event);
        // Behind the node's hearing of it: how its processes may be ended, its record says.
        if (event.ranks > 1 && event.alive)
            crews_.adopt(event.name, event.token_sha256, event.process, event.others, event.starts,
                         gone);
    }
    crews_.tidy();
}

// The record's process; or what it has left behind, which is ended.
void NodeActor::adopt_process(node::InstanceRecovered& event) {
    if (event.process.pid == 0)
        return;
    event.alive = processes_.adopt(event.name, event.process).has_value();
    if (event.alive || event.token_sha256.empty())
        return;
    event.alive = processes_.adopt_rest(event.name, event.process, event.token_sha256).has_value();
}

// Those that are not there; what there is of the others is ended then.
std::vector<uint32_t> NodeActor::adopt_ranks(node::InstanceRecovered& event) {
    event.others.resize(event.ranks - 1); // of an earlier one there may be no word
    std::vector<uint32_t> gone;
    for (uint32_t rank = 0; rank < event.ranks; ++rank) {
        const node::RankProcess one = rank == 0
                                          ? node::RankProcess{event.process, event.token_sha256}
                                          : event.others[rank - 1];
        const node::InstanceName name = rank_name(event.name, rank);
        if (one.process && processes_.adopt(name, one.process)) {
            event.alive = true;
        } else if (one.process && !one.token_sha256.empty() &&
                   processes_.adopt_rest(name, one.process, one.token_sha256)) {
            event.alive = true; // its end is told when that is gone too
        } else {
            gone.push_back(rank);
        }
    }
    return gone;
}

void NodeActor::recover_operations(const StoredState& stored, Recovery& recovery) {
    for (const OperationRecord& record : stored.operations) {
        auto entry = operation_from(record);
        if (!entry) {
            log::error("{}; it is no longer followed", entry.error().message);
            continue;
        }
        bool running = entry->operation.state == node::OperationState::kRunning;
        node::Operation operation = entry->operation;
        context_.operations.restore(std::move(*entry));
        if (!running)
            continue;
        ++recovery.operations;
        context_.post(node::OperationRecovered{std::move(operation)});
    }
}

void NodeActor::recover_rollouts(const StoredState& stored) {
    for (const MetaRecord& record : stored.meta) {
        if (!is_rollout(record))
            continue;
        if (auto rollout = rollout_from(record))
            context_.post(node::RolloutRecovered{std::move(*rollout)});
        else
            log::error("{}; its documents are what they were", rollout.error().message);
    }
}

} // namespace berth
