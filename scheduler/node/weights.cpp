// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/durable.h"
#include "scheduler/node/step.h"
#include "scheduler/node/tiers.h"

#include <algorithm>
#include <utility>

namespace berth::node {

void Step::on(const WeightsAdopted& event) {
    WeightSet set;
    set.id = event.id;
    set.fingerprint = event.fingerprint;
    set.device = event.device;
    set.bytes = event.bytes;
    set.pinned = event.pinned;
    set.last_used = now_;
    set.source = event.source;
    set.made_on = event.made_on;
    set.file = event.file;
    if (!event.path.empty()) {
        const LoadKey key{event.path,         event.dtype, event.device,
                          event.quantization, event.rank,  event.ranks};
        set.keys.insert(key);
        s_.known_weight_bytes[key] = event.bytes;
    }
    if (!event.model.empty())
        set.models.insert(event.model);
    if (event.lost) { // nobody is given it any more
        WeightSet forgotten = set;
        forgotten.bytes = 0; // its record says from now on that there is nothing
        if (set.pinned)
            s_.pinned_keys.insert(set.keys.begin(), set.keys.end());
        set.id = lost_id(event.id);
        set.pinned = false;
        set.keys.clear();
        set.stale = true;
        if (set.id != event.id)
            act(PersistWeights{forgotten});
    }
    const auto [place, fresh] = s_.weights.try_emplace({set.device, set.id}, set);
    if (!fresh && event.lost) // lost once more: some may still have the one, some the other
        place->second.bytes += set.bytes;
    else if (!fresh) // another path to it, in a record of its own
        place->second.keys.insert(set.keys.begin(), set.keys.end());
    if (event.lost) // with the one above in one transaction
        act(PersistWeights{place->second});
}

void Step::on(const LeaseOpened& event) {
    const auto found = s_.weights.find({event.device, event.set});
    // Nobody is given a set that is being dropped: the actor looks before it hands one out.
    if (found == s_.weights.end() || found->second.dropping)
        return;
    found->second.last_used = now_;
    if (const Instance* i = find(event.instance);
        i != nullptr && i->leases(event.set, event.device))
        return; // its own: leased from StartProcess on
    // A process that connects again has no second mapping's worth of lease.
    for (const auto& [id, lease] : s_.leases)
        if (!event.instance.empty() && lease.instance == event.instance && lease.set == event.set &&
            lease.device == event.device)
            return;
    s_.leases[event.lease] =
        Lease{event.lease, event.set, event.device, event.holder, event.instance};
}

void Step::on(const LeaseClosed& event) {
    const auto found = s_.leases.find(event.lease);
    if (found == s_.leases.end())
        return;
    // A process that lives still has the mapping; its end closes the lease (see process_gone).
    if (const Instance* i = find(found->second.instance); i != nullptr && i->process_alive)
        return;
    s_.leases.erase(found);
}

void Step::drop(WeightSet& set) {
    set.dropping = true;
    set.leaving = false;
    for (const DeviceId& tier : {kHostTier, kImageTier}) // of all copies theirs are the latest used
        if (const auto copy = s_.weights.find({tier, set.id}); copy != s_.weights.end())
            copy->second.last_used = std::max(copy->second.last_used, set.last_used);
    if (is_read(s_, set)) {
        for (auto& [id, load] : s_.loads)
            if (load.source == set.device && load.from == set.id && !load.copy_to.empty())
                act(KillLoad{id});
        set.drop_waits = true;
        return;
    }
    act(DropWeights{set.id, set.device});
}

void Step::on(const WeightsDropped& event) {
    const auto found = s_.weights.find({event.device, event.set});
    if (found == s_.weights.end() || !found->second.dropping || found->second.drop_waits)
        return;
    const WeightSet set = std::move(found->second);
    s_.weights.erase(found);
    act(EmitEvent{false, "weights/" + set.id.value, "Dropped",
                  format_bytes(set.bytes) + " are free on " + set.device.value});
    if (!set.operation)
        return;
    if (const auto waiting = s_.operations.find(*set.operation); waiting != s_.operations.end())
        waiting->second.bytes_freed += set.bytes;
    finish_evict(*set.operation, set.id);
}

// The bytes are there still, so they go on to count; who waits for them learns why.
void Step::on(const DropFailed& event) {
    const auto found = s_.weights.find({event.device, event.set});
    if (found == s_.weights.end() || !found->second.dropping || found->second.drop_waits)
        return;
    WeightSet& set = found->second;
    set.drop_again = now_ + kDropRetryTime;
    if (set.drop_error != event.error.message)
        act(EmitEvent{true, "weights/" + set.id.value, "DropFailed",
                      "it could not be removed from " + set.device.value + " (" +
                          event.error.message + "): its " + format_bytes(set.bytes) +
                          " stay counted there, and it is tried again every " +
                          format_duration(kDropRetryTime)});
    set.drop_error = event.error.message;
    if (set.operation)
        finish_evict(*set.operation, set.id);
}

// Once all that it evicts is gone, or could not go.
void Step::finish_evict(const OperationId& operation, const WeightSetId& id) {
    std::string stuck;
    for (const auto& [key, set] : s_.weights) {
        if (set.operation != operation)
            continue;
        if (set.drop_error.empty())
            return; // still going
        stuck += (stuck.empty() ? "" : "; ") + set.device.value + ": " + set.drop_error;
    }
    // It may be a set's own.
    const OperationId ended = operation; // NOLINT(performance-unnecessary-copy-initialization)
    for (auto& [key, set] : s_.weights)
        if (set.operation == ended)
            set.operation.reset();
    if (!stuck.empty()) {
        const std::string message = "weight set " + id.value + " could not be removed (" + stuck +
                                    "); its bytes stay counted, and it is tried again";
        return finish_operation(ended, Error{ErrorCode::kIo, message, "DropFailed", 0}, message);
    }
    std::string places;
    for (const DeviceId& place : places_of(s_, id))
        places += (places.empty() ? "; it stays in " : " and ") + place.value;
    finish_operation(ended, std::nullopt, "weight set " + id.value + " is gone" + places);
}

// An evict with --drop that the daemon before this one had begun: nobody was given the set since.
void Step::take_up_drop(const Operation& operation) {
    std::vector<WeightSet*> sets;
    std::string held;
    for (auto& [key, set] : s_.weights) {
        if (operation.object != "weights/" + set.id.value || set.dropping)
            continue;
        sets.push_back(&set);
        held = set.pinned ? "pinned" : users_of(set);
        if (!held.empty())
            break;
    }
    if (!held.empty()) {
        const std::string message = "it was not all removed when the daemon was restarted, and is "
                                    "held meanwhile (" +
                                    held + "); ask again";
        return finish_operation(operation.id,
                                Error{ErrorCode::kFailedPrecondition, message, "WeightsInUse", 0},
                                message);
    }
    if (sets.empty())
        return finish_operation(operation.id, std::nullopt,
                                "was done when the daemon was restarted");
    for (WeightSet* set : sets) {
        set->operation = operation.id;
        drop(*set);
    }
}

void Step::on(const WeightsPin& event) {
    Operation operation;
    operation.id = event.operation;
    operation.kind = event.pinned ? OperationKind::kPin : OperationKind::kUnpin;
    operation.object = "weights/" + event.set.value;
    bool found = false;
    for (auto& [key, set] : s_.weights) {
        if (set.id != event.set || set.dropping || is_tier(set.device))
            continue;
        found = true;
        set.pinned = event.pinned;
        act(PersistWeights{set});
    }
    if (!found)
        return refuse_operation(operation, Error{ErrorCode::kNotFound,
                                                 "no weight set '" + event.set.value +
                                                     "' is resident; see `berth get weights`",
                                                 "WeightsNotFound", 0});
    answer_operation(operation, event.pinned ? "pinned" : "unpinned");
}

void Step::on(const WeightsEvict& event) {
    if (s_.operations.contains(event.operation))
        return;
    Operation operation;
    operation.id = event.operation;
    operation.kind = OperationKind::kEvictWeights;
    operation.object = "weights/" + event.set.value;
    operation.dry_run = event.dry_run;
    operation.drop = event.drop;
    std::vector<WeightSet*> sets;
    uint64_t bytes = 0;
    bool here = false;
    std::string below;
    for (auto& [key, set] : s_.weights) {
        // One that could not be removed may be asked for again.
        if (set.id != event.set || (set.dropping && set.drop_error.empty()))
            continue;
        here = true;
        if (is_tier(set.device) && !event.drop) {
            below += (below.empty() ? "" : " and ") + set.device.value;
            continue;
        }
        const std::string names = users_of(set);
        if (!names.empty())
            return refuse_operation(operation,
                                    Error{ErrorCode::kFailedPrecondition,
                                          "in use by " + names + "; evict or end these first",
                                          "WeightsInUse", 0});
        if (set.pinned)
            return refuse_operation(operation, Error{ErrorCode::kFailedPrecondition,
                                                     "pinned; unpin it first", "WeightsPinned", 0});
        if (set.leaving && !event.drop)
            return refuse_operation(operation,
                                    Error{ErrorCode::kAlreadyExists,
                                          "being evicted already, once its copies are made; with "
                                          "--drop it goes without",
                                          "EvictUnderWay", 0});
        sets.push_back(&set);
        bytes += set.bytes;
    }
    if (sets.empty() && here)
        return refuse_operation(operation, Error{ErrorCode::kFailedPrecondition,
                                                 "it lies on no device, only in " + below +
                                                     "; to remove it there too: berth evict --drop",
                                                 "NotResident", 0});
    if (sets.empty())
        return refuse_operation(operation, Error{ErrorCode::kNotFound,
                                                 "no weight set '" + event.set.value +
                                                     "' is resident; see `berth get weights`",
                                                 "WeightsNotFound", 0});
    if (event.dry_run)
        return answer_operation(operation,
                                format_bytes(bytes) + " would come free" +
                                    (below.empty() ? "" : "; it would stay in " + below));
    begin_operation(operation);
    for (WeightSet* set : sets) {
        if (const auto earlier = std::exchange(set->operation, operation.id))
            finish_operation(*earlier,
                             Error{ErrorCode::kUnavailable, "evicted by a later one, with --drop",
                                   "Superseded", 0},
                             "evicted by a later one, with --drop");
        if (event.drop)
            drop(*set);
        else
            leave(*set);
    }
}

// Who keeps a set from being evicted: holders of leases, and of a copy the loads that read it.
std::string Step::users_of(const WeightSet& set) const {
    std::string names;
    for (const std::string& holder : lease_holders(s_, set))
        names += (names.empty() ? "" : ", ") + holder;
    for (const auto& [id, load] : s_.loads)
        if (is_tier(set.device) && load.copy_to.empty() && load.source == set.device &&
            load.from == set.id && load.state != Load::State::kEnding)
            names +=
                (names.empty() ? "load-" : ", load-") + std::to_string(static_cast<uint64_t>(id));
    return names;
}

} // namespace berth::node
