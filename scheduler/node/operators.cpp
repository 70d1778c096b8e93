// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

#include <chrono>
#include <vector>

// What an operator asks beside preempt and resume: hold and release an instance, drain it, take a
// device out of service and back.
namespace berth::node {

namespace {

Error device_not_found(const DeviceId& device) {
    return Error{ErrorCode::kNotFound,
                 "no device '" + device.value + "' on this node; see `berth get devices`",
                 "DeviceNotFound", 0};
}

// What an operator asked of a device, as the operation that will answer it.
template <typename Event>
Operation requested_of_device(const Event& event, OperationKind kind) {
    Operation operation;
    operation.id = event.operation;
    operation.kind = kind;
    operation.object = "device/" + event.device.value;
    operation.cause = event.reason;
    operation.dry_run = event.dry_run;
    return operation;
}

// The operation that drains a device; nullptr: none.
const Operation* drain_of(const NodeState& state, const DeviceId& device) {
    for (const auto& [id, operation] : state.operations)
        if (operation.kind == OperationKind::kDrainDevice &&
            operation.object == "device/" + device.value)
            return &operation;
    return nullptr;
}

// Who has a process there, or waits for its weights to be loaded there.
std::vector<InstanceName> instances_on(const NodeState& state, const DeviceId& device) {
    std::vector<InstanceName> there;
    for (const auto& [name, i] : state.instances)
        if (i.is_on(device))
            there.push_back(name);
    return there;
}

// What a drain would do.
std::string drain_words(const NodeState& state, const DeviceId& device,
                        const std::vector<InstanceName>& there) {
    if (there.empty())
        return device.value + " would take nothing new; nobody is there";
    std::string text;
    for (const InstanceName& name : there)
        text += (text.empty() ? "" : ", ") + name.value + " (" +
                std::string(to_string(state.instances.at(name).state)) + ")";
    return device.value + " would take nothing new, and these would leave it: " + text;
}

} // namespace

void Step::on(const OperatorHold& event) {
    if (s_.operations.contains(event.operation))
        return;
    Operation operation =
        requested(event, event.hold ? OperationKind::kHold : OperationKind::kRelease);
    Instance* i = find(event.instance);
    if (i == nullptr)
        return refuse_operation(operation, instance_not_found(event.instance));
    const std::string state(to_string(i->state));
    const std::string name = i->name.value;
    if (i->on_hold == event.hold)
        return answer_operation(operation,
                                name + (event.hold ? " is on hold already" : " is not on hold"));
    const bool over = i->state == InstanceState::kSucceeded || i->state == InstanceState::kFailed;
    const std::string words =
        event.hold ? name + " (" + state + ") is neither started nor resumed until it is released"
        : over ? name + " (" + state + ") is not on hold any more; it has ended, so nothing starts"
               : name + " (" + state + ") is started and resumed again";
    if (!event.dry_run) {
        i->on_hold = event.hold;
        if (!event.hold && i->reason == "OnHold")
            enter(*i, i->state);
        dirty(*i);
        tell(*i, false, event.hold ? "Held" : "Released",
             words + (event.reason.empty() ? "" : ": " + event.reason));
    }
    answer_operation(operation, words);
}

void Step::on(const OperatorDrain& event) {
    if (s_.operations.contains(event.operation))
        return;
    Operation operation = requested(event, OperationKind::kDrain);
    operation.mode = operation.reached = policies::Rung::kEvict;
    Instance* i = find(event.instance);
    if (i == nullptr)
        return refuse_operation(operation, instance_not_found(event.instance));
    const std::string name = i->name.value;
    if (i->state == InstanceState::kSucceeded || i->state == InstanceState::kFailed)
        return refuse_operation(operation,
                                Error{ErrorCode::kFailedPrecondition,
                                      name + " has ended (" + std::string(to_string(i->state)) +
                                          "); there is nothing to drain",
                                      "NotRunning", 0});
    if (i->state == InstanceState::kUnkillable)
        return refuse_operation(operation,
                                Error{ErrorCode::kFailedPrecondition,
                                      name + " is Unkillable: " + i->message + "; `berth preempt " +
                                          name + " --mode Evict` sends SIGKILL to process " +
                                          std::to_string(i->process.pid) + " again",
                                      i->reason, 0});
    if (event.dry_run)
        return answer_operation(operation, name + " (" + std::string(to_string(i->state)) +
                                               ") would finish what is under way within " +
                                               format_duration(event.timeout) +
                                               " and end; it stays away until it is resumed");
    if (i->state == InstanceState::kEvicted) {
        i->held_by = HeldBy::kOperator;
        dirty(*i);
        return answer_operation(operation, name + " is Evicted already");
    }
    if (i->operation)
        supersede(*i->operation, operation.id);
    begin_operation(operation);
    if (i->state == InstanceState::kPreempting && i->desired == Desired::kEvicted) {
        i->held_by = HeldBy::kOperator; // it ends already: no later, and it stays away
        return dirty(*i);
    }
    begin_rung(*i, policies::Rung::kEvict, HeldBy::kOperator, event.timeout);
}

void Step::set_cordon(Device& device, bool cordoned, const std::string& reason) {
    device.cordoned = cordoned;
    device.cordon_reason = cordoned ? reason : "";
    act(PersistDevice{device});
    act(EmitEvent{cordoned, "device/" + device.id.value, cordoned ? "Cordoned" : "Uncordoned",
                  cordoned ? "nothing new is placed there: " + reason : "in service again"});
}

void Step::on(const DeviceCordon& event) {
    if (s_.operations.contains(event.operation))
        return;
    Operation operation = requested_of_device(event, event.cordoned ? OperationKind::kCordon
                                                                    : OperationKind::kUncordon);
    const auto found = s_.devices.find(event.device);
    if (found == s_.devices.end())
        return refuse_operation(operation, device_not_found(event.device));
    Device& device = found->second;
    const std::string words =
        device.id.value + (event.cordoned ? " takes nothing new" : " is in service");
    if (device.cordoned == event.cordoned)
        return answer_operation(operation, words + " already");
    if (event.dry_run)
        return answer_operation(operation,
                                device.id.value + (event.cordoned ? " would take nothing new"
                                                                  : " would be in service again"));
    set_cordon(device, event.cordoned,
               event.reason.empty() ? "asked by an operator" : event.reason);
    if (const Operation* drain = drain_of(s_, device.id); drain != nullptr && !event.cordoned) {
        const OperationId id = drain->id;
        const std::string text = device.id.value + " was taken into service again by operation " +
                                 operation.id.value + " before it was empty";
        finish_operation(id, Error{ErrorCode::kFailedPrecondition, text, "Superseded", 0}, text);
    }
    answer_operation(operation, words);
}

void Step::on(const DeviceDrain& event) {
    if (s_.operations.contains(event.operation))
        return;
    Operation operation = requested_of_device(event, OperationKind::kDrainDevice);
    operation.mode = operation.reached = policies::Rung::kEvict;
    const auto found = s_.devices.find(event.device);
    if (found == s_.devices.end())
        return refuse_operation(operation, device_not_found(event.device));
    if (const Operation* other = drain_of(s_, event.device))
        return refuse_operation(operation, Error{ErrorCode::kFailedPrecondition,
                                                 event.device.value + " is drained already by " +
                                                     "operation " + other->id.value +
                                                     "; wait for it, or uncordon the device",
                                                 "OperationInProgress", 0});
    const std::vector<InstanceName> there = instances_on(s_, event.device);
    if (event.dry_run)
        return answer_operation(operation, drain_words(s_, event.device, there));
    if (!found->second.cordoned)
        set_cordon(found->second, true, event.reason.empty() ? "being drained" : event.reason);
    begin_operation(operation);
    for (const InstanceName& name : there)
        send_away(*find(name), event.device, event.timeout);
}

void Step::end_phase(Operation& operation, const std::string& name) {
    operation.phases[name] +=
        std::chrono::duration<double, std::milli>(now_ - operation.phase_started).count();
    operation.phase_started = now_;
}

// It ends there in an orderly way and comes back where there is room.
void Step::send_away(Instance& i, const DeviceId& device, Nanoseconds timeout) {
    if (i.state == InstanceState::kUnkillable)
        return;
    tell(i, false, "DeviceDrained", "leaves " + device.value + ", which is drained");
    if (!i.process_alive) { // its weights are being loaded there: it looks for another place
        i.devices.clear();
        return enter(i, InstanceState::kPending, "", "", device.value + " is drained");
    }
    if (i.state == InstanceState::kPreempting && i.desired == Desired::kEvicted)
        return; // it ends already
    if (i.operation)
        if (const auto found = s_.operations.find(*i.operation); found != s_.operations.end())
            found->second.reached = policies::Rung::kEvict;
    begin_rung(i, policies::Rung::kEvict, HeldBy::kPlanner, timeout);
}

// A device is empty once all instances have left it, then its idle weight sets; what cannot leave
// (a process that does not end, sets that are pinned or held by somebody else) is said.
void Step::watch_drains() {
    std::vector<OperationId> drains;
    for (const auto& [id, operation] : s_.operations)
        if (operation.kind == OperationKind::kDrainDevice)
            drains.push_back(id);
    for (const OperationId& id : drains)
        watch_drain(s_.operations.at(id));
}

void Step::watch_drain(Operation& operation) {
    const DeviceId device(operation.object.substr(operation.object.find('/') + 1));
    if (!s_.devices.contains(device)) {
        const Error gone = device_not_found(device);
        return finish_operation(operation.id, gone, gone.message);
    }
    std::string stuck;
    bool leaving = false;
    for (const InstanceName& name : instances_on(s_, device)) {
        Instance& i = *find(name);
        if (i.state != InstanceState::kUnkillable) {
            if (i.state != InstanceState::kPreempting && i.substate != "Killed")
                send_away(i, device, s_.policy.preemption.grace_period);
            leaving = leaving || i.is_on(device);
            continue;
        }
        stuck += (stuck.empty() ? "" : "; ") + name.value + ": " + i.message;
    }
    if (leaving)
        return;
    if (!stuck.empty())
        return finish_operation(
            operation.id,
            Error{ErrorCode::kDeadlineExceeded,
                  "not empty: what is left on " + device.value + " does not end: " + stuck,
                  "Unkillable", 0},
            "what is left on " + device.value + " does not end: " + stuck);
    if (!operation.phases.contains("instances"))
        end_phase(operation, "instances");
    for (auto& [id, load] : s_.loads) {
        if (!(load.key.device == device) || !load.copy_to.empty())
            continue;
        // Its bytes count until its loader has ended; one from a tier would only try another.
        if (load.placed || (!load.source.empty() && load.state != Load::State::kEnding))
            return;
        if (load.state != Load::State::kPlanning || !load.holder.empty())
            continue;
        load.state = Load::State::kEnding;
        act(KillLoad{id});
        end_load(load, std::nullopt,
                 Error{ErrorCode::kFailedPrecondition, device.value + " is drained",
                       "DeviceUnavailable", 0});
    }
    std::string kept;
    bool leaves = false;
    for (auto& [key, set] : s_.weights) {
        if (set.device != device)
            continue;
        if (!set.drop_error.empty()) {
            kept += (kept.empty() ? "" : ", ") + set.id.value + " (" + set.drop_error + ")";
            continue;
        }
        const std::string users = users_of(set);
        if (!set.dropping && !set.leaving && !set.pinned && users.empty())
            leave(set);
        if (set.dropping || set.leaving)
            leaves = true;
        else
            kept += (kept.empty() ? "" : ", ") + set.id.value +
                    (set.pinned ? " (pinned)" : " (in use by " + users + ")");
    }
    if (leaves)
        return;
    end_phase(operation, "weights");
    finish_operation(operation.id, std::nullopt,
                     kept.empty() ? device.value +
                                        " is empty and takes nothing new until `berth "
                                        "uncordon " +
                                        device.value + "`"
                                  : "no instance is left on " + device.value +
                                        "; these weight sets stay: " + kept);
}

} // namespace berth::node
