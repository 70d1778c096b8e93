// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/ranks.h"
#include "scheduler/node/service.h"
#include "scheduler/node/step.h"

#include <algorithm>
#include <utility>

// Grants that change while the engine runs. Shrink is a rung of the ladder: the bytes count as the
// instance's until the driver has confirmed that they are free. Grow reserves first: from then on
// the engine may map them, so they count until it has said no and the driver agrees.
namespace berth::node {

void Step::begin_shrink(Instance& i, uint64_t grant_bytes, HeldBy held_by) {
    const uint64_t target = std::max(grant_bytes_whole(grant_bytes), grant_bytes_min(i));
    if (target >= i.grant_bytes)
        return;
    stop_growing(i);
    i.grant_bytes_next = target;
    i.grant_bytes_resume = std::max(is_shrunk(i) ? i.grant_bytes_resume : 0, i.grant_bytes);
    i.shrunk_by = held_by;
    i.shrink_spares = false;
    // Whoever parked it goes on holding it: a Shrink brings it back to where it was.
    begin_rung(i, policies::Rung::kShrink, i.held_by, s_.policy.preemption.grace_period);
}

// The driver has confirmed it.
void Step::shrunk(Instance& i, uint64_t left) {
    left = std::max(left, std::min(i.grant_bytes_next, i.grant_bytes)); // its right, mapped or not
    const uint64_t freed = i.grant_bytes - left;
    i.shrink_spares = false;
    ++i.preempted.count;
    i.preempted.bytes_freed += freed;
    operation_phase(i, "reclaiming");
    cancel_timers(i);
    i.command.reset();
    i.grant_bytes = left;
    i.grant_bytes_next = 0;
    i.desired = i.came_from == InstanceState::kPaused ? Desired::kPaused : Desired::kRunning;
    const std::string text = format_bytes(freed) + " freed" +
                             (i.shrunk_by == HeldBy::kPlanner ? " for a higher class" : "") +
                             "; its grant is " + format_bytes(left) + " of " +
                             format_bytes(i.grant_bytes_resume);
    enter(i, i.came_from, "", "", text);
    if (i.state == InstanceState::kRunning && std::exchange(i.pause_late, false))
        send(i, CommandKind::kResume);
    if (i.operation)
        finish_operation(*i.operation, std::nullopt,
                         i.name.value + " is " + std::string(to_string(i.state)) + ": " + text,
                         freed);
}

// Whatever it has given back counts as its own again; see late_answer.
void Step::shrink_given_up(Instance& i) {
    i.grant_bytes_next = 0;
    if (i.grant_bytes_resume > i.grant_bytes)
        return;
    i.grant_bytes_resume = 0;
    i.shrunk_by = HeldBy::kNobody;
}

// The engine is back in the middle of it: what it says it has counts, once the driver agrees.
void Step::reconcile_shrink(Instance& i, EngineHeld held, uint64_t grant_bytes) {
    if (held == EngineHeld::kOffloaded) // further down than asked
        return begin_rung(i, policies::Rung::kOffload,
                          i.held_by == HeldBy::kNobody ? i.shrunk_by : i.held_by, i.grace);
    i.pause_late = held == EngineHeld::kPaused && i.came_from == InstanceState::kRunning;
    i.grant_bytes_next = std::max(i.grant_bytes_next, grant_bytes_min(i));
    const uint64_t slack = confirm_slack_bytes(s_.devices.at(i.devices.front()).kind);
    if (grant_bytes > i.grant_bytes_next + slack)
        return take_rung(i, policies::Rung::kShrink, true);
    cancel_timers(i);
    i.command.reset();
    i.deadline = now_ + s_.policy.preemption.reclaim_deadline;
    arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
    confirm(i, grant_bytes);
}

void Step::begin_grow(Instance& i, uint64_t grant_bytes) {
    const bool up = i.state == InstanceState::kRunning || i.state == InstanceState::kPaused;
    const uint64_t target = std::min(grant_bytes_whole(grant_bytes), grant_bytes_max(i.spec));
    if (!up || !i.session || is_growing(i) || is_plain_process(i) || i.substate == "Killed" ||
        target <= i.grant_bytes)
        return;
    i.grant_bytes_next = i.grant_bytes;
    i.grant_bytes = target;
    i.grant_state = GrantState::kReserved;
    arm(i.aside_timer, Timer{Timer::Kind::kGrow, i.name, {}},
        now_ + s_.policy.resume.verify_timeout);
    send(i, CommandKind::kGrow, target);
}

void Step::grown(Instance& i, const CommandDone& event) {
    if (!is_growing(i))
        return;
    cancel(i.aside_timer);
    if (!event.error) {
        if (check_claim(i, event.grant_bytes))
            growth_over(i);
        return;
    }
    tell(i, true, "GrowFailed", event.error->message);
    if (i.operation && !promotes(s_, i))
        finish_operation(*i.operation, event.error, event.error->message);
    // Not tried again at once; and the bytes stay reserved until the driver has said what it holds.
    i.restart_at = now_ + kRoomRetryTime;
    i.claimed_grant_bytes = event.grant_bytes;
    dirty(i);
    act(ConfirmBytes{i.name, i.devices.front(), i.process});
}

void Step::grow_refused(Instance& i, const BytesConfirmed& event) {
    if (event.grant_bytes) {
        const uint64_t slack = confirm_slack_bytes(s_.devices.at(i.devices.front()).kind);
        const uint64_t before = i.grant_bytes_next;
        const uint64_t holds = std::max(*event.grant_bytes, i.claimed_grant_bytes);
        i.grant_bytes = holds <= before + slack ? before : std::min(holds, i.grant_bytes);
    }
    i.grant_bytes_next = 0;
    i.grant_state = i.session ? GrantState::kHeld : GrantState::kUnconfirmed;
    dirty(i);
    if (is_shrunk(i))
        arm(i.aside_timer, Timer{Timer::Kind::kBackOff, i.name, {}}, i.restart_at);
}

// It was told that it may have the bytes, so it has them as far as anybody else is concerned.
void Step::grow_unanswered(Instance& i) {
    if (!is_growing(i))
        return;
    i.late_command = i.command;
    i.late_kind = CommandKind::kGrow;
    i.command.reset();
    const Error why{ErrorCode::kDeadlineExceeded,
                    "the engine has not answered Grow within " +
                        format_duration(s_.policy.resume.verify_timeout) +
                        "; the bytes stay reserved for it",
                    "DeadlineExceeded", 0};
    tell(i, true, "GrowUnanswered", why.message);
    if (i.operation && !promotes(s_, i))
        finish_operation(*i.operation, why, why.message);
    growth_over(i);
}

void Step::growth_over(Instance& i) {
    const std::string text = take_growth(i);
    if (i.operation && !promotes(s_, i))
        finish_operation(*i.operation, std::nullopt,
                         i.name.value + " is " + std::string(to_string(i.state)) + ": " + text);
}

// What was reserved is its own. In words, for whoever waits for it.
std::string Step::take_growth(Instance& i) {
    cancel(i.aside_timer);
    i.grant_bytes_next = 0;
    i.grant_state = i.session ? GrantState::kHeld : GrantState::kUnconfirmed;
    const uint64_t full = std::max(i.grant_bytes_resume, i.grant_bytes);
    if (i.grant_bytes >= i.grant_bytes_resume) {
        i.grant_bytes_resume = 0;
        i.shrunk_by = HeldBy::kNobody;
    }
    dirty(i);
    const std::string text = "its grant is " + format_bytes(i.grant_bytes) +
                             (full > i.grant_bytes ? " of " + format_bytes(full) : "");
    i.message = is_shrunk(i) ? text : "";
    tell(i, false, "Grown", text);
    return text;
}

// Something else is asked of it before it has answered.
void Step::stop_growing(Instance& i) {
    if (!is_growing(i))
        return;
    if (i.command && i.command_kind == CommandKind::kGrow) {
        i.late_command = std::exchange(i.command, std::nullopt);
        i.late_kind = CommandKind::kGrow;
    }
    static_cast<void>(take_growth(i)); // an operation of it is overtaken by what comes now
}

// The engine is back, and says what it has mapped.
void Step::reconcile_growth(Instance& i, uint64_t grant_bytes) {
    if (!is_growing(i))
        return;
    const uint64_t slack = confirm_slack_bytes(s_.devices.at(i.devices.front()).kind);
    if (grant_bytes + slack >= i.grant_bytes)
        return growth_over(i);
    i.grant_state = GrantState::kReserved;
    arm(i.aside_timer, Timer{Timer::Kind::kGrow, i.name, {}},
        now_ + s_.policy.resume.verify_timeout);
    send(i, CommandKind::kGrow, i.grant_bytes);
}

uint64_t Step::growth_room(const Instance& i) const {
    Board board(s_);
    return room_for_each(i, board,
                         [&](const Board::Row& row) { return board.spoken_for(row, i, false); })
        .bytes;
}

bool Step::may_grow(const Instance& i) const {
    const bool up = i.state == InstanceState::kRunning || i.state == InstanceState::kPaused;
    return up && i.session && is_shrunk(i) && i.shrunk_by == HeldBy::kPlanner && !is_growing(i) &&
           !i.command && !i.operation && !i.on_hold && i.substate.empty() && i.restart_at <= now_;
}

std::optional<Error> Step::grow_back(Instance& i) {
    const uint64_t room = growth_room(i);
    const uint64_t target = std::min(i.grant_bytes_resume, grant_bytes_whole(i.grant_bytes + room));
    if (target <= i.grant_bytes)
        return Error{ErrorCode::kResourceExhausted,
                     i.name.value + " has " + format_bytes(i.grant_bytes) + " of " +
                         format_bytes(i.grant_bytes_resume) + "; " +
                         room_words(s_, i.devices.front(), room),
                     "InsufficientMemory", 0};
    i.shrunk_by = HeldBy::kPlanner; // what is not free now comes by itself
    begin_grow(i, target);
    return std::nullopt;
}

// An operator's resume of what runs with less than it had.
void Step::resume_shrunk(Instance& i, Operation operation) {
    if (i.operation || is_growing(i))
        return refuse_operation(operation, Error{ErrorCode::kFailedPrecondition,
                                                 i.name.value + " is being " +
                                                     (is_growing(i) ? "enlarged" : "changed") +
                                                     " already; wait for it",
                                                 "OperationInProgress", 0});
    if (!i.session)
        return refuse_operation(
            operation, Error{ErrorCode::kUnavailable,
                             "the engine of " + i.name.value + " is not connected now; try again",
                             "EngineNotConnected", 0});
    if (operation.dry_run)
        return answer_operation(
            operation, i.name.value + " would grow back to " + format_bytes(i.grant_bytes_resume) +
                           " as far as there is room, which is " + format_bytes(growth_room(i)));
    begin_operation(operation);
    if (std::optional<Error> no = grow_back(i))
        finish_operation(operation.id, no, no->message);
}

} // namespace berth::node
