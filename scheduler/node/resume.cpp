// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/ranks.h"
#include "scheduler/node/step.h"

#include <algorithm>
#include <utility>

namespace berth::node {

std::optional<Error> Step::resume_refusal(const Instance& i) const {
    if (i.state == InstanceState::kSucceeded)
        return Error{ErrorCode::kFailedPrecondition,
                     i.name.value + " has succeeded; change its document to run it again",
                     "NotRunning", 0};
    if (i.state == InstanceState::kUnkillable)
        return Error{ErrorCode::kFailedPrecondition,
                     i.name.value + " is Unkillable: " + i.message +
                         "; it goes on by itself once its process has ended",
                     i.reason, 0};
    if (i.operation || i.state == InstanceState::kPreempting || i.state == InstanceState::kResuming)
        return Error{
            ErrorCode::kFailedPrecondition,
            i.name.value + " is " + std::string(to_string(i.state)) +
                (i.operation ? ", operation " + i.operation->value + " is under way" : "") +
                "; wait for it",
            "OperationInProgress", 0};
    if (i.state == InstanceState::kSuspended)
        for (const DeviceId& id : i.devices)
            if (const auto device = s_.devices.find(id);
                device != s_.devices.end() && device->second.cordoned)
                return Error{ErrorCode::kFailedPrecondition,
                             id.value + " is cordoned (" + device->second.cordon_reason +
                                 "): uncordon it, or evict " + i.name.value +
                                 " so that it returns elsewhere",
                             "DeviceUnavailable", 0};
    const bool parked = i.state == InstanceState::kPaused || i.state == InstanceState::kSuspended;
    if (parked && !i.session && !is_plain_process(i))
        return Error{ErrorCode::kUnavailable,
                     "the engine of " + i.name.value + " is not connected now; try again",
                     "EngineNotConnected", 0};
    return std::nullopt;
}

void Step::on(const OperatorResume& event) {
    if (s_.operations.contains(event.operation))
        return;
    Operation operation = requested(event, OperationKind::kResume);
    Instance* i = find(event.instance);
    if (i == nullptr)
        return refuse_operation(operation, instance_not_found(event.instance));
    if (i->state == InstanceState::kRunning && is_shrunk(*i))
        return resume_shrunk(*i, std::move(operation));
    if (i->state == InstanceState::kRunning)
        return answer_operation(operation, i->name.value + " is Running already");
    if (std::optional<Error> no = resume_refusal(*i))
        return refuse_operation(operation, std::move(*no));
    if (event.dry_run)
        return answer_operation(operation, "resume of " + i->name.value + " (now " +
                                               std::string(to_string(i->state)) +
                                               ") would be tried");
    begin_operation(operation);
    if (i->state == InstanceState::kPaused)
        return resume_paused(*i);
    if (i->state == InstanceState::kSuspended) {
        Error why;
        Board board(s_);
        const auto taken = [&](const Board::Row& row) { return board.spoken_for(row, *i, false); };
        if (!resume_suspended(*i, room_for_each(*i, board, taken), why))
            finish_operation(*i->operation, why, why.message);
        return;
    }
    if (i->state == InstanceState::kEvicted || i->state == InstanceState::kFailed) {
        i->came_from = i->state;
        i->failures.clear();
        i->desired = Desired::kRunning;
        i->held_by = HeldBy::kNobody;
        i->restart_at = now_;
        cancel_timers(*i);
        enter(*i, InstanceState::kPending, "", "", "to be started again");
    } else if (i->state == InstanceState::kPending) {
        i->restart_at = now_; // whatever it waits for: try now
        i->came_from = InstanceState::kPending;
        dirty(*i);
    }
    // schedule() starts it; the operation ends when it runs (or cannot).
}

void Step::resume_paused(Instance& i) {
    i.came_from = InstanceState::kPaused;
    i.desired = Desired::kRunning;
    i.rung_started = now_;
    i.deadline = now_ + s_.policy.resume.verify_timeout;
    enter(i, InstanceState::kResuming, "Restoring");
    arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
    if (is_plain_process(i))
        act(ContinueProcess{i.name, i.process});
    else
        send(i, CommandKind::kResume);
}

// Reserves first; a resume happens only into memory that is set aside for it: what is free there
// and not taken by others.
bool Step::resume_suspended(Instance& i, const RankRoom& room, Error& why) {
    const uint64_t available = room.bytes + i.grant_bytes;
    const uint64_t least = grant_bytes_min(i);
    if (available < least) {
        why = Error{ErrorCode::kResourceExhausted,
                    i.name.value + " needs at least " + format_bytes(least) + " on " +
                        room.device.value + " to resume, " + format_bytes(available) +
                        " are free for it; preempt or evict something first",
                    "InsufficientMemory", 0};
        if (i.reason != why.reason) {
            i.reason = why.reason;
            i.message = why.message;
            dirty(i);
            tell(i, true, why.reason, why.message);
        }
        return false;
    }
    const uint64_t wanted =
        i.grant_bytes_resume > 0 ? i.grant_bytes_resume : grant_bytes_max(i.spec);
    i.came_from = InstanceState::kSuspended;
    i.desired = Desired::kRunning;
    i.grant_bytes = std::max(
        std::clamp(wanted, least, std::max(least, grant_bytes_whole(available))), i.grant_bytes);
    i.grant_state = GrantState::kReserved;
    i.grace = Nanoseconds(0);
    i.rung_started = now_;
    i.deadline = now_ + s_.policy.resume.verify_timeout;
    cancel_timers(i);
    operation_phase(i, "reserving");
    enter(i, InstanceState::kResuming, "Restoring");
    arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
    send(i, CommandKind::kRestore, i.grant_bytes);
    return true;
}

void Step::resume_done(Instance& i) {
    operation_phase(i, "restoring");
    cancel_timers(i);
    i.grant_state = i.session ? GrantState::kHeld : GrantState::kUnconfirmed;
    i.host_bytes = 0;
    i.pause_late = false;
    i.held_by = HeldBy::kNobody;
    i.desired = Desired::kRunning;
    if (i.came_from == InstanceState::kSuspended) { // what there was no room for comes by itself
        const bool less = i.grant_bytes < i.grant_bytes_resume;
        i.shrunk_by = less ? HeldBy::kPlanner : HeldBy::kNobody;
        i.grant_bytes_resume = less ? i.grant_bytes_resume : 0;
    }
    enter(i, InstanceState::kRunning);
    const bool asked = i.operation.has_value();
    if (asked)
        finish_operation(*i.operation, std::nullopt, i.name.value + " is Running");
    if (asked && is_shrunk(i))
        static_cast<void>(grow_back(i)); // an operator's resume undoes a Shrink too
}

void Step::on(const ProcessContinued& event) {
    Instance* i = find(event.instance);
    if (i != nullptr && i->process == event.process && is_plain_process(*i) &&
        i->state == InstanceState::kResuming)
        resume_done(*i);
}

void Step::resume_failed(Instance& i, const Error& why) {
    cancel_timers(i);
    // Not answered, it may take the bytes yet.
    const bool unanswered = i.command && i.command_kind == CommandKind::kRestore &&
                            why.code == ErrorCode::kDeadlineExceeded;
    i.late_command = unanswered ? i.command : std::nullopt;
    i.late_kind = CommandKind::kRestore;
    i.command.reset();
    const bool from_pause = i.came_from == InstanceState::kPaused;
    const std::string reason = why.reason.empty() ? "ResumeFailed" : why.reason;
    if (i.held_by == HeldBy::kNobody)
        i.held_by = HeldBy::kOperator;
    if (i.operation)
        finish_operation(*i.operation, why, why.message);
    if (s_.policy.resume.on_failure == policies::OnResumeFailure::kEvict) {
        tell(i, true, reason, why.message + "; it is evicted, as the policy says");
        return begin_rung(i, policies::Rung::kEvict, i.held_by, s_.policy.preemption.grace_period);
    }
    i.desired = from_pause ? Desired::kPaused : Desired::kSuspended;
    // A planner's victim whose restore fails is not tried again and again: an operator looks.
    i.held_by = HeldBy::kOperator;
    enter(i, from_pause ? InstanceState::kPaused : InstanceState::kSuspended, "", reason,
          why.message);
    tell(i, true, reason, why.message);
    if (from_pause)
        return;
    // The reserved bytes stay counted until it has answered and the driver says how much of them it
    // holds.
    i.grant_state = i.session ? GrantState::kHeld : GrantState::kUnconfirmed;
    if (!unanswered)
        act(ConfirmBytes{i.name, i.devices.front(), i.process});
}

} // namespace berth::node
