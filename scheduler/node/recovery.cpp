// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/durable.h"
#include "scheduler/node/tiers.h"
#include "scheduler/node/watching.h"

#include <algorithm>

// After a restart of the daemon: the records say what was; the facts (which processes live, what
// their engines say when they are back) decide. Live grants are Unconfirmed until then.
namespace berth::node {

namespace {

bool has_process(InstanceState state) {
    switch (state) {
    case InstanceState::kStarting:
    case InstanceState::kRunning:
    case InstanceState::kPreempting:
    case InstanceState::kPaused:
    case InstanceState::kSuspended:
    case InstanceState::kResuming:
    case InstanceState::kUnkillable:
        return true;
    default:
        return false;
    }
}

} // namespace

void Step::on(const InstanceRecovered& event) {
    Instance i;
    i.name = event.name;
    i.order = next_id();
    i.since = i.restart_at = i.rung_started = now_;
    const bool nothing_yet = event.state == InstanceState::kLoading ||
                             (event.state == InstanceState::kStarting && event.never_started);
    i.state = nothing_yet ? InstanceState::kPending : event.state;
    i.desired = event.desired;
    i.held_by = event.held_by;
    i.reason = event.reason;
    i.message = event.message;
    i.process_digest = event.process_digest;
    i.starts = event.starts;
    i.restarts = event.restarts;
    i.came_from = event.state == InstanceState::kResuming && event.host_bytes == 0 &&
                          event.grant_bytes_resume == 0
                      ? InstanceState::kPaused
                      : InstanceState::kSuspended;
    if (event.came_from)
        i.came_from = *event.came_from;
    i.on_hold = event.on_hold;
    i.service = event.service;
    i.stands_by = event.stands_by;
    i.generation = event.generation;
    i.journals = event.journals;
    i.requests_digest = event.requests_digest;
    i.start_took = event.start_took;
    i.waiting_since = event.waiting_since.value_or(now_);
    i.disruptions = event.disruptions;
    i.running_since = now_;
    const bool known = !event.devices.empty() &&
                       std::all_of(event.devices.begin(), event.devices.end(),
                                   [this](const DeviceId& id) { return s_.devices.contains(id); });
    // Its start was on record, its pid not yet; it may have been preempted meanwhile.
    const bool unseen =
        !event.process && !event.never_started &&
        (event.state == InstanceState::kStarting || event.state == InstanceState::kPreempting);
    if (has_process(i.state) && (event.alive || unseen) && known) {
        i.devices = event.devices;
        i.ranks = event.ranks;
        for (size_t rank = 0; rank < std::min(event.weights.size(), i.devices.size()); ++rank) {
            WeightSetId& kept = i.weights.emplace_back();
            for (const WeightSetId& set : {event.weights[rank], lost_id(event.weights[rank])})
                if (kept.empty() && find_set(s_, set, i.devices[rank]) != nullptr)
                    kept = set;
        }
        if (std::ranges::all_of(i.weights, &WeightSetId::empty))
            i.weights.clear();
        else
            i.weights.resize(i.ranks);
        i.process = event.process;
        i.others = event.others;
        i.process_alive = true;
        i.token_sha256 = event.token_sha256;
        i.endpoint = event.endpoint;
        i.grant_bytes = event.grant_bytes;
        i.grant_bytes_resume = event.grant_bytes_resume;
        i.grant_bytes_next = event.grant_bytes_next;
        i.shrunk_by = event.shrunk_by;
        i.grant_state = GrantState::kUnconfirmed;
        i.overhead_bytes = event.overhead_bytes;
        i.host_bytes = event.host_bytes;
        i.phases = event.phases;
        if (i.state == InstanceState::kRunning && i.stands_by)
            i.substate = "Standby";
    }
    const InstanceName name = i.name;
    const bool moved = !i.weights.empty() && i.weights != event.weights;
    s_.instances[name] = std::move(i);
    if (moved) // before that set is loaded again
        dirty(s_.instances.at(name));
}

void Step::on(const OperationRecovered& event) {
    Operation operation = event.operation;
    operation.started_at = operation.phase_started = now_;
    s_.operations[operation.id] = operation;
    if (Instance* i = find(operation.instance))
        i->operation = operation.id;
}

void Step::finish_recovery() {
    for (auto& [key, set] : s_.weights) {
        if (!is_lost(set.id))
            continue;
        set.copy_after = now_ + kReconnectTime; // who has mapped it comes back until then
        const std::string names = users_of(set);
        act(EmitEvent{true, "weights/" + set.id.value, "WeightsLost",
                      "the keeper ended together with the daemon: " + format_bytes(set.bytes) +
                          " on " + set.device.value + " are loaded anew for newcomers, and count" +
                          (names.empty() ? " until those who may have mapped them had time to "
                                           "come back"
                                         : " beside that as long as " + names + " has them")});
    }
    for (Instance* i : by_priority()) {
        if (!has_process(i->state))
            continue;
        if (!i->process_alive) {
            tell(*i, true, "EndedMeanwhile", "its process ended while the daemon was away");
            ended(*i, false, "ended while the daemon was away", "");
            continue;
        }
        if (i->state == InstanceState::kUnkillable) {
            // What the kill was to end may have been found again only now.
            act(KillProcess{i->name, i->process});
            continue;
        }
        if (is_plain_process(*i)) {
            go_on(*i);
            continue;
        }
        if (i->session)
            continue;
        Watching{*this}.begin(*i);
        if (i->state == InstanceState::kStarting)
            arm(i->timer, Timer{Timer::Kind::kStart, i->name, {}},
                now_ + i->spec.engine.start_deadline);
        else if (i->state == InstanceState::kPreempting || i->state == InstanceState::kResuming)
            arm(i->timer, Timer{Timer::Kind::kReconnect, i->name, {}}, now_ + kReconnectTime);
    }
    const std::map<OperationId, Operation> operations = s_.operations;
    for (const auto& [id, operation] : operations)
        if (s_.operations.contains(id))
            finish_recovered(operation);
}

// A plain process has no session that could say where it is: what was under way is done again.
void Step::go_on(Instance& i) {
    i.grant_state = GrantState::kHeld;
    switch (i.state) {
    case InstanceState::kStarting:
        if (i.process)
            return become_running(i);
        return arm(i.timer, Timer{Timer::Kind::kStart, i.name, {}},
                   now_ + i.spec.engine.start_deadline);
    case InstanceState::kPreempting:
        return begin_rung(i, rung_of(i.desired), i.held_by, s_.policy.preemption.grace_period);
    case InstanceState::kPaused:
        return act(StopProcess{i.name, i.process});
    case InstanceState::kResuming:
        i.deadline = now_ + s_.policy.resume.verify_timeout;
        arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
        return act(ContinueProcess{i.name, i.process});
    default:
        return;
    }
}

// What was under way when the daemon died is finished from the facts, or goes on.
void Step::finish_recovered(const Operation& operation) {
    const Error lost{ErrorCode::kUnavailable,
                     "the daemon was restarted before this was done; ask again", "DaemonRestarted",
                     0};
    Instance* i = find(operation.instance);
    if (i != nullptr && !i->operation) // its instance's record was lost: it is known only now
        i->operation = operation.id;
    if (i != nullptr && i->operation != operation.id) // that it had ended is not on record
        return finish_operation(operation.id, lost, lost.message);
    const auto is = [i](InstanceState state) { return i != nullptr && i->state == state; };
    bool done = false;
    switch (operation.kind) {
    case OperationKind::kDrainDevice: {
        const auto device =
            s_.devices.find(DeviceId(operation.object.substr(operation.object.find('/') + 1)));
        if (device == s_.devices.end() || device->second.cordoned)
            return; // watch_drains() ends it
        break;      // it was put back in service meanwhile
    }
    case OperationKind::kDrain:
    case OperationKind::kPreempt:
        if (is(InstanceState::kPreempting))
            return;
        done = (is(InstanceState::kPaused) && operation.mode == policies::Rung::kPause) ||
               (is(InstanceState::kSuspended) && operation.mode != policies::Rung::kEvict) ||
               (operation.mode == policies::Rung::kShrink && i != nullptr && is_shrunk(*i) &&
                i->process_alive) ||
               (is(InstanceState::kEvicted) && i->reason != "EngineDied");
        break;
    case OperationKind::kPromote:
        done = i != nullptr && !i->stands_by && is(InstanceState::kRunning);
        break;
    case OperationKind::kResume:
        if (is(InstanceState::kResuming) || is(InstanceState::kPending) ||
            is(InstanceState::kStarting) || (i != nullptr && is_growing(*i)))
            return;
        done = is(InstanceState::kRunning);
        break;
    case OperationKind::kEvictWeights:
        if (operation.drop)
            return take_up_drop(operation);
        done = true;
        for (const auto& [key, set] : s_.weights)
            done = done && (is_tier(set.device) || operation.object != "weights/" + set.id.value);
        break;
    default:
        break;
    }
    finish_operation(operation.id, done ? std::nullopt : std::optional<Error>(lost),
                     done ? "was done when the daemon was restarted" : lost.message);
}

} // namespace berth::node
