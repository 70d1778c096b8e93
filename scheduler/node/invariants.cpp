// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/reducer.h"
#include "scheduler/node/service.h"
#include "scheduler/node/tiers.h"

#include <algorithm>

namespace berth::node {

namespace {

using Findings = std::vector<std::string>;

void check_devices(const NodeState& state, Findings& wrong) {
    for (const auto& [id, device] : state.devices) {
        const DeviceUsage now = usage(state, id);
        if (now.used_bytes() > now.total_bytes)
            wrong.push_back(id.value + ": " + format_bytes(now.used_bytes()) +
                            " are given out of " + format_bytes(now.total_bytes));
        uint64_t sum = 0;
        for (const LedgerLine& line : now.lines)
            sum += line.bytes;
        if (sum != now.used_bytes())
            wrong.push_back(id.value + ": the lines' sum differs from the totals");
    }
}

void check_process(const Instance& i, Findings& wrong) {
    const std::string who = i.name.value + " (" + std::string(to_string(i.state)) + "): ";
    bool wants_process = true;
    switch (i.state) {
    case InstanceState::kPending:
    case InstanceState::kLoading:
    case InstanceState::kSucceeded:
    case InstanceState::kFailed:
    case InstanceState::kEvicted:
        wants_process = false;
        break;
    default:
        break;
    }
    if (wants_process != i.process_alive)
        wrong.push_back(who + (i.process_alive ? "has a process" : "has no process"));
    if (i.process_alive && i.devices.empty())
        wrong.push_back(who + "has a process and no device");
    // All ranks or none.
    if (i.process_alive && i.ranks > 1 &&
        (i.devices.size() != i.ranks || (!i.others.empty() && i.others.size() + 1 != i.ranks) ||
         (!i.weights.empty() && i.weights.size() != i.ranks)))
        wrong.push_back(who + "has a part of its ranks alone");
    if (!i.process_alive && (i.grant_bytes > 0 || i.overhead_bytes > 0 || i.session ||
                             !i.weights.empty() || i.grant_state != GrantState::kNone))
        wrong.push_back(who + "holds bytes, weights or a session without a process");
    if (i.process_alive && i.grant_state == GrantState::kNone)
        wrong.push_back(who + "has a process and no grant on record");
    if (i.state == InstanceState::kResuming && i.grant_state == GrantState::kNone)
        wrong.push_back(who + "resumes into memory that is not reserved");
}

void check_progress(const NodeState& state, const Instance& i, Findings& wrong) {
    const std::string who = i.name.value + " (" + std::string(to_string(i.state)) + "): ";
    const bool needs_deadline = i.state == InstanceState::kStarting ||
                                i.state == InstanceState::kPreempting ||
                                i.state == InstanceState::kResuming;
    const bool stuck = i.reason == "ProcessWontEnd";
    if (state.ready && !state.stopping && needs_deadline && !stuck &&
        (!i.timer || !state.timers.contains(*i.timer)))
        wrong.push_back(who + "has no deadline");
    if (i.operation && !state.operations.contains(*i.operation))
        wrong.push_back(who + "names operation " + i.operation->value + ", which is not under way");
    if (i.state == InstanceState::kLoading) {
        bool loads = false;
        for (const auto& [id, load] : state.loads)
            loads = loads || (load.copy_to.empty() && i.is_on(load.key.device) &&
                              load.state != Load::State::kEnding);
        if (!loads)
            wrong.push_back(who + "waits for a load that is not under way");
    }
}

void check_weights(const NodeState& state, Findings& wrong) {
    for (const auto& [key, set] : state.weights)
        if (set.dropping && !lease_holders(state, set).empty())
            wrong.push_back("weights " + set.id.value + " are dropped under a lease");
    for (const auto& [name, i] : state.instances)
        for (size_t rank = 0; rank < i.weights.size(); ++rank)
            if (state.ready && i.process_alive && rank < i.devices.size() &&
                !i.weights[rank].empty() &&
                find_set(state, i.weights[rank], i.devices[rank]) == nullptr &&
                i.grant_state != GrantState::kUnconfirmed)
                wrong.push_back(name.value + " has a lease on weights that are not resident");
}

// Never two that answer one socket.
void check_service(const NodeState& state, const Instance& i, Findings& wrong) {
    if (i.service.empty() || i.stands_by || !may_act(i))
        return;
    for (const auto& [name, other] : state.instances) {
        if (&other == &i || other.service != i.service)
            continue;
        if (!other.stands_by && may_act(other))
            wrong.push_back(i.name.value + " and " + name.value + " both answer for " + i.service);
        if (other.generation > i.generation)
            wrong.push_back(i.name.value + " answers for " + i.service + " as generation " +
                            std::to_string(i.generation) + ", and " + name.value + " knows " +
                            std::to_string(other.generation));
    }
}

void check_tiers(const NodeState& state, Findings& wrong) {
    for (const DeviceId& tier : {kHostTier, kImageTier}) {
        const TierUsage now = tier_usage(state, tier);
        if (now.used_bytes - now.leaving_bytes + now.making_bytes <= now.limit_bytes ||
            (tier == kImageTier && state.policy.memory.image_dir.empty()))
            continue;
        // What is read cannot go yet, and what could not be removed is tried again.
        bool reads = false, stays = false;
        for (const auto& [key, copy] : state.weights) {
            reads = reads || (copy.device == tier && !copy.dropping && is_read(state, copy));
            stays = stays || (belongs(state, copy, tier) && !copy.dropping);
        }
        if (!reads && stays)
            wrong.push_back(tier.value + " holds " + format_bytes(now.used_bytes) + " of " +
                            format_bytes(now.limit_bytes));
    }
    size_t copies = 0;
    for (const auto& [id, load] : state.loads) {
        copies += load.copy_to.empty() ? 0 : 1;
        if (!load.from.empty() && !state.weights.contains({load.source, load.from}))
            wrong.push_back("load-" + std::to_string(static_cast<uint64_t>(id)) + " reads " +
                            load.from.value + " in " + load.source.value + ", where it is no more");
    }
    if (copies > 1)
        wrong.push_back(std::to_string(copies) + " copies are made at a time");
    for (const auto& [key, set] : state.weights)
        if (set.drop_waits && (!set.dropping || !is_read(state, set)))
            wrong.push_back("weights " + set.id.value + " wait for a reader that is gone");
    for (const auto& [key, set] : state.weights)
        if (set.dropping && set.drop_again > TimePoint() && set.drop_again < TimePoint::max() &&
            (!state.tier_timer || state.tier_timer_at > set.drop_again))
            wrong.push_back("weights " + set.id.value + " are never tried to be dropped again");
}

// Something still leaves the device that it drains, which takes nothing new meanwhile.
void check_drain(const NodeState& state, const Operation& operation, Findings& wrong) {
    const DeviceId device(operation.object.substr(operation.object.find('/') + 1));
    const auto found = state.devices.find(device);
    if (found == state.devices.end() || !found->second.cordoned) {
        wrong.push_back("operation " + operation.id.value + " drains what is in service");
        return;
    }
    bool leaves = false;
    for (const auto& [name, i] : state.instances)
        leaves = leaves || (i.is_on(device) && i.state != InstanceState::kUnkillable);
    for (const auto& [id, load] : state.loads)
        leaves = leaves ||
                 (load.key.device == device && load.copy_to.empty() &&
                  (load.placed || (!load.source.empty() && load.state != Load::State::kEnding)));
    for (const auto& [key, set] : state.weights)
        leaves = leaves || (set.device == device && (set.dropping || set.leaving));
    if (!leaves && !state.stopping)
        wrong.push_back("operation " + operation.id.value + " drains " + device.value +
                        ", which nothing leaves any more");
}

void check_operations(const NodeState& state, Findings& wrong) {
    for (const auto& [id, operation] : state.operations) {
        if (operation.kind == OperationKind::kEvictWeights && state.ready &&
            std::none_of(state.weights.begin(), state.weights.end(), [&id](const auto& one) {
                return one.second.operation == id && (one.second.dropping || one.second.leaving);
            }))
            wrong.push_back("operation " + id.value + " evicts nothing");
        if (operation.kind == OperationKind::kDrainDevice && state.ready)
            check_drain(state, operation, wrong);
        const bool of_instance = operation.kind == OperationKind::kPreempt ||
                                 operation.kind == OperationKind::kResume ||
                                 operation.kind == OperationKind::kDrain;
        if (!of_instance || !state.ready)
            continue;
        const auto found = state.instances.find(operation.instance);
        if (found == state.instances.end() || found->second.operation != id)
            wrong.push_back("operation " + id.value + " is under way on nothing");
    }
}

// A surge has a rollout that needs it; and until it may hand over, nobody is asked to.
void check_rollouts(const NodeState& state, Findings& wrong) {
    for (const auto& [name, i] : state.instances) {
        if (!is_surge(name) || i.remove_wanted)
            continue;
        const auto of = state.rollouts.find(InstanceName(i.spec.standby_of));
        if (of == state.rollouts.end() || !of->second.is_under_way() || !of->second.surge_stays)
            wrong.push_back(name.value + " is there, and no rollout needs it");
    }
    for (const auto& [name, r] : state.rollouts) {
        if (!r.is_under_way())
            continue;
        const std::string who =
            "the rollout of " + name.value + " (" + std::string(to_string(r.phase)) + ") ";
        const policies::InstanceSpec* spec = state.documents.find_instance(name.value);
        if (spec == nullptr) {
            wrong.push_back(who + "is of an instance that is in no document");
            continue;
        }
        const bool early = r.phase == RolloutPhase::kStarting || r.phase == RolloutPhase::kReady;
        if (early && r.first != name && !(*spec == r.before))
            wrong.push_back(who + "has changed who serves before the new one is ready");
        if (r.phase == RolloutPhase::kReverting && !(*spec == r.before))
            wrong.push_back(who + "goes back, and its document is another");
        if (early && state.documents.find_instance(r.first.value) == nullptr)
            wrong.push_back(who + "starts nobody");
    }
}

} // namespace

std::vector<std::string> check_invariants(const NodeState& state) {
    Findings wrong;
    check_devices(state, wrong);
    for (const auto& [name, i] : state.instances) {
        if (state.ready)
            check_process(i, wrong);
        check_progress(state, i, wrong);
    }
    for (const auto& [name, i] : state.instances)
        if (state.ready && !state.stopping)
            check_service(state, i, wrong);
    check_weights(state, wrong);
    if (state.ready && !state.stopping)
        check_tiers(state, wrong);
    if (state.ready && !state.stopping)
        check_rollouts(state, wrong);
    check_operations(state, wrong);
    return wrong;
}

} // namespace berth::node
