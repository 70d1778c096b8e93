// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

#include "scheduler/node/rollout_step.h"
#include "scheduler/node/service.h"

#include <chrono>
#include <utility>

namespace berth::node {

namespace {

// What changes the world outside, and so must find its intent on record.
bool is_outward(const Action& action) {
    return !std::holds_alternative<PersistInstance>(action) &&
           !std::holds_alternative<EmitEvent>(action) &&
           !std::holds_alternative<Decision>(action) && !std::holds_alternative<ArmTimer>(action) &&
           !std::holds_alternative<CancelTimer>(action) &&
           !std::holds_alternative<PersistOperation>(action) &&
           !std::holds_alternative<PersistRollout>(action) &&
           !std::holds_alternative<ForgetRollout>(action);
}

double milliseconds(Nanoseconds duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
}

} // namespace

std::vector<Action> apply(NodeState& state, const Event& event, TimePoint now) {
    return Step(state, now).run(event);
}

std::string object_of(const Instance& i) {
    return "instance/" + i.name.value;
}

std::vector<Action> Step::run(const Event& event) {
    if (s_.stopping)
        return {};
    std::visit([this](const auto& one) { on(one); }, event);
    if (s_.ready && !s_.stopping)
        watch_drains();
    if (plans_) {
        // Rollouts first: nothing is started with a document that is given up in the same step.
        Rolling{*this}.watch();
        schedule();
        for (int n = 0; n < 3 && Rolling{*this}.watch(); ++n)
            schedule();
        if (s_.ready && !s_.stopping) {
            schedule_tiers();
            watch_drains(); // a copy that has ended may have been the last to leave
        }
    }
    flush();
    return std::move(actions_);
}

void StepBase::flush() {
    for (const InstanceName& name : std::exchange(dirty_, {}))
        if (const Instance* i = find(name))
            actions_.push_back(PersistInstance{*i});
}

void StepBase::act(Action action) {
    if (is_outward(action))
        flush();
    actions_.push_back(std::move(action));
}

Instance* StepBase::find(const InstanceName& name) {
    const auto found = s_.instances.find(name);
    return found == s_.instances.end() ? nullptr : &found->second;
}

void StepBase::tell(const Instance& i, bool warning, std::string reason, std::string message) {
    act(EmitEvent{warning, object_of(i), std::move(reason), std::move(message)});
}

void StepBase::enter(Instance& i, InstanceState state, std::string substate, std::string reason,
                     std::string message) {
    const bool changed = i.state != state || i.reason != reason;
    if (i.state != state) {
        i.since = now_;
        const auto runs = [](InstanceState one) {
            return one == InstanceState::kRunning || one == InstanceState::kPreempting ||
                   one == InstanceState::kStarting || one == InstanceState::kResuming;
        };
        if (state == InstanceState::kRunning && i.state != InstanceState::kPreempting)
            i.running_since = now_;
        if (runs(i.state) && !runs(state))
            i.waiting_since = now_;
    }
    i.state = state;
    i.substate = std::move(substate);
    if (state == InstanceState::kRunning && i.stands_by && i.substate.empty())
        i.substate = "Standby";
    i.reason = std::move(reason);
    i.message = std::move(message);
    dirty(i);
    if (!changed)
        return;
    std::string text = i.message;
    if (!i.reason.empty())
        text = i.reason + (text.empty() ? "" : ": " + text);
    const bool warning = state == InstanceState::kFailed || state == InstanceState::kUnkillable ||
                         i.reason == "BackOff" || i.reason == "EngineDied" ||
                         i.reason == "InsufficientMemory";
    tell(i, warning, std::string(to_string(state)), std::move(text));
}

void StepBase::arm(std::optional<TimerId>& slot, Timer timer, TimePoint at) {
    cancel(slot);
    const TimerId id{next_id()};
    s_.timers[id] = std::move(timer);
    slot = id;
    act(ArmTimer{id, at});
}

void StepBase::cancel(std::optional<TimerId>& slot) {
    if (!slot)
        return;
    if (s_.timers.erase(*slot) > 0)
        act(CancelTimer{*slot});
    slot.reset();
}

bool StepBase::is_timed(const Instance& i) const {
    const auto timer = i.timer ? s_.timers.find(*i.timer) : s_.timers.end();
    return timer != s_.timers.end() && timer->second.kind == Timer::Kind::kRung;
}

void StepBase::cancel_timers(Instance& i) {
    cancel(i.timer);
    cancel(i.aside_timer);
}

void StepBase::send(Instance& i, CommandKind kind, uint64_t grant_bytes) {
    const CommandId id{next_id()};
    i.command = id;
    i.command_kind = kind;
    dirty(i);
    SendCommand command;
    command.instance = i.name;
    command.command = id;
    command.kind = kind;
    command.grant_bytes = grant_bytes;
    command.grace_ms = std::chrono::ceil<std::chrono::milliseconds>(i.grace).count();
    command.canary = s_.policy.resume.verify_canary;
    command.kv = s_.policy.preemption.kv_on_offload;
    command.generation = i.generation;
    if (kind == CommandKind::kStop && has_successor(s_, i))
        command.hand_over = hand_over_of(s_, i);
    if (kind == CommandKind::kOffload) {
        uint64_t host_bytes = i.grant_bytes;
        for (const auto& [name, other] : s_.instances)
            host_bytes += other.host_bytes;
        // Past the limit nothing more is saved: the engine computes its KV again.
        if (host_bytes > s_.policy.memory.host_pinned_limit_bytes)
            command.kv = policies::KvOnOffload::kDrop;
    }
    // Without a connection it is sent when the engine is back (see reconcile).
    if (i.session)
        act(std::move(command));
}

void StepBase::operation_phase(Instance& i, const std::string& name) {
    if (!i.operation)
        return;
    const auto found = s_.operations.find(*i.operation);
    if (found == s_.operations.end())
        return;
    Operation& operation = found->second;
    operation.phases[name] += milliseconds(now_ - operation.phase_started);
    operation.phase_started = now_;
}

void StepBase::begin_operation(Operation& operation) {
    operation.started_at = operation.phase_started = now_;
    s_.operations[operation.id] = operation;
    if (Instance* i = find(operation.instance))
        i->operation = operation.id;
    act(PersistOperation{operation});
}

void StepBase::supersede(const OperationId& id, const OperationId& by) {
    const std::string words = "overtaken by operation " + by.value;
    finish_operation(id, Error{ErrorCode::kFailedPrecondition, words, "Superseded", 0}, words);
}

void StepBase::finish_operation(const OperationId& id, std::optional<Error> error,
                                std::string message, uint64_t bytes_freed) {
    const auto found = s_.operations.find(id);
    if (found == s_.operations.end())
        return;
    Operation operation = std::move(found->second);
    s_.operations.erase(found);
    if (Instance* i = find(operation.instance); i != nullptr && i->operation == id) {
        i->operation.reset();
        dirty(*i);
    }
    operation.state = error ? OperationState::kFailed : OperationState::kSucceeded;
    operation.error = std::move(error);
    operation.message = std::move(message);
    operation.bytes_freed += bytes_freed;
    operation.phases["total"] = milliseconds(now_ - operation.started_at);
    flush();
    act(PersistOperation{operation});
    act(OperationDone{std::move(operation)});
}

void StepBase::refuse_operation(Operation operation, Error error) {
    operation.state = OperationState::kFailed;
    operation.message = error.message;
    operation.error = std::move(error);
    operation.started_at = operation.phase_started = now_;
    if (!operation.dry_run)
        act(PersistOperation{operation});
    act(OperationDone{std::move(operation)});
}

void StepBase::answer_operation(Operation operation, std::string message) {
    operation.state = OperationState::kSucceeded;
    operation.message = std::move(message);
    operation.started_at = operation.phase_started = now_;
    if (!operation.dry_run)
        act(PersistOperation{operation});
    act(OperationDone{std::move(operation)});
}

void Step::on(const DeviceSeen& event) {
    s_.devices[event.id] = Device{event.id,          event.kind,     event.name,
                                  event.total_bytes, event.cordoned, event.cordon_reason};
}

void Step::on(const WallClockTold& event) {
    s_.wall = WallClock{true, event.unix_seconds, event.utc_offset_seconds, now_};
}

void Step::on(const Shutdown&) {
    s_.stopping = true;
    for (const auto& [id, timer] : s_.timers)
        act(CancelTimer{id});
    s_.timers.clear();
    for (const auto& [name, i] : s_.instances)
        dirty_.insert(name);
}

} // namespace berth::node
