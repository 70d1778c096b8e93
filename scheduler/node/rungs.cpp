// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/service.h"
#include "scheduler/node/step.h"

#include <algorithm>

// The ladder. A rung begins with a command (to a plain process: a signal) and a deadline. An answer
// in time settles it, for Shrink and Offload only after the driver has confirmed the bytes. A
// missed deadline, an error or a short reclaim moves on to the next rung that the policy allows and
// that gives what was asked for; after the last one the process is ended, if the fallback is Evict.
namespace berth::node {

using policies::Rung;

void Step::begin_rung(Instance& i, Rung rung, HeldBy held_by, Nanoseconds grace) {
    if (i.state == InstanceState::kUnkillable) { // its bytes come free when its process ends
        if (i.operation)
            finish_operation(*i.operation,
                             Error{ErrorCode::kFailedPrecondition, i.message, i.reason, 0},
                             i.message);
        return;
    }
    if (i.operation) {
        const auto found = s_.operations.find(*i.operation);
        if (found != s_.operations.end() && (found->second.kind == OperationKind::kResume ||
                                             found->second.kind == OperationKind::kPromote)) {
            const std::string words =
                i.name.value + (i.remove_wanted    ? " is removed meanwhile"
                                : i.restart_wanted ? " starts again first: its document has changed"
                                                   : " is preempted meanwhile");
            finish_operation(*i.operation,
                             Error{ErrorCode::kFailedPrecondition, words, "Superseded", 0}, words);
        }
    }
    if (rung != Rung::kShrink) {
        stop_growing(i);
        i.grant_bytes_next = 0;
    }
    if (i.state != InstanceState::kPreempting)
        i.came_from = i.state;
    const bool parked =
        i.came_from == InstanceState::kPaused || i.came_from == InstanceState::kSuspended;
    // What an operator has parked does not come back by itself because the planner needed its
    // bytes.
    i.held_by = parked && i.held_by == HeldBy::kOperator ? HeldBy::kOperator : held_by;
    i.grace = grace;
    cancel_timers(i);
    take_rung(i, rung);
}

// Again: its engine is back and hears it once more, which wins it no time.
void Step::take_rung(Instance& i, Rung rung, bool again) {
    if (again && !is_timed(i))
        return begin_rung(i, rung, i.held_by, i.grace);
    i.desired = desired_of(rung);
    if (!again)
        i.rung_started = now_;
    if (!i.process_alive) { // waits for room or for a load: there is nothing to end
        enter(i, InstanceState::kPreempting, "Stopping");
        i.devices.clear();
        settle(i, InstanceState::kEvicted, 0);
        return;
    }
    const bool plain = is_plain_process(i);
    const Nanoseconds reclaim = s_.policy.preemption.reclaim_deadline;
    // An engine is told how long it has; a plain process has its grace from SIGTERM to SIGKILL.
    const bool leaves = i.grace >= reclaim && has_successor(s_, i);
    const Nanoseconds leaving = leaves ? kLeavingTime : Nanoseconds(0);
    if (!again)
        i.deadline = now_ + (rung != Rung::kEvict ? reclaim
                             : plain              ? i.grace
                                                  : std::max(i.grace + leaving, reclaim));
    enter(i, InstanceState::kPreempting, rung == Rung::kEvict ? "Stopping" : "Draining", "",
          std::string(policies::to_string(rung)));
    if (plain && (rung == Rung::kShrink || rung == Rung::kOffload))
        return rung_missed(i, Error{ErrorCode::kUnsupported,
                                    "a plain process (driver: process) gives no memory back",
                                    "NotSupported", 0});
    arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
    if (rung == Rung::kPause) {
        if (plain)
            act(StopProcess{i.name, i.process});
        else
            send(i, CommandKind::kPause);
    } else if (rung == Rung::kShrink) {
        send(i, CommandKind::kShrink, i.grant_bytes_next);
    } else if (rung == Rung::kOffload) {
        if (i.came_from != InstanceState::kSuspended && !is_shrunk(i))
            i.grant_bytes_resume = i.grant_bytes;
        send(i, CommandKind::kOffload);
    } else {
        if (!plain)
            send(i, CommandKind::kStop);
        if ((plain || !i.session) && i.process)
            act(TerminateProcess{i.name, i.process});
    }
}

// The first rung behind the missed one, in the policy's order, that gives at least as much: Shrink
// does not stop an engine, so it is no way on from Pause. A missed rung that is not in the list (an
// operator may ask for any) goes on from the list's beginning.
std::optional<Rung> Step::next_rung(const Instance& i, Rung missed) const {
    if (missed == Rung::kShrink && (i.shrink_spares || gives_room(s_.rollouts, i.name)))
        return std::nullopt; // it serves on
    const auto& modes = s_.policy.preemption.modes;
    const auto place = std::find(modes.begin(), modes.end(), missed);
    for (auto rung = place == modes.end() ? modes.begin() : place + 1; rung != modes.end();
         ++rung) {
        if (*rung == Rung::kEvict && missed != Rung::kEvict)
            return Rung::kEvict;
        if (*rung == Rung::kOffload && missed != Rung::kOffload && i.session &&
            !is_plain_process(i))
            return Rung::kOffload;
    }
    if (s_.policy.preemption.fallback_evict && missed != Rung::kEvict)
        return Rung::kEvict;
    return std::nullopt;
}

void Step::rung_missed(Instance& i, const Error& why) {
    const Rung rung = rung_of(i.desired);
    operation_phase(i, std::string(policies::to_string(rung)) + "Missed");
    if (rung == Rung::kEvict) {
        if (i.substate == "Killed")
            return;
        tell(i, true, "EvictMissed", why.message + "; its process is ended");
        kill(i);
        return;
    }
    const std::optional<Rung> next = next_rung(i, rung);
    if (!next)
        return give_up(i, why);
    tell(i, true, why.reason.empty() ? "RungMissed" : why.reason,
         std::string(policies::to_string(rung)) + ": " + why.message +
             "; next: " + std::string(policies::to_string(*next)));
    if (i.operation)
        if (const auto found = s_.operations.find(*i.operation); found != s_.operations.end())
            found->second.reached = *next;
    begin_rung(i, *next,
               rung == Rung::kShrink && i.held_by == HeldBy::kNobody ? i.shrunk_by : i.held_by,
               i.grace);
}

// No rung is left that the policy allows: the instance is taken for running, as far as we know.
void Step::give_up(Instance& i, const Error& why) {
    cancel_timers(i);
    i.late_command = i.command;
    i.late_kind = i.command_kind;
    i.command.reset();
    if (i.desired == Desired::kShrunk)
        shrink_given_up(i);
    i.grow_after = now_ + kResizeRetryTime;
    const bool was_paused = i.came_from == InstanceState::kPaused;
    i.desired = was_paused ? Desired::kPaused : Desired::kRunning;
    i.held_by = was_paused ? i.held_by : HeldBy::kNobody;
    enter(i, was_paused ? InstanceState::kPaused : InstanceState::kRunning, "",
          why.reason.empty() ? "PreemptFailed" : why.reason, why.message);
    if (is_plain_process(i) && !was_paused)
        act(ContinueProcess{i.name, i.process});
    tell(i, true, "PreemptFailed", why.message + "; the policy allows no further rung");
    if (i.operation)
        finish_operation(*i.operation, why, why.message);
}

void Step::settle(Instance& i, InstanceState state, uint64_t bytes_freed) {
    static constexpr const char* kPhase[] = {"draining", "reclaiming", "stopping"};
    operation_phase(i, state == InstanceState::kPaused      ? kPhase[0]
                       : state == InstanceState::kSuspended ? kPhase[1]
                                                            : kPhase[2]);
    cancel_timers(i);
    i.command.reset();
    i.pause_late = false; // what is parked is told to go on when it is resumed
    if (state == InstanceState::kSucceeded)
        i.desired = Desired::kStopped;
    i.restart_at = now_ + (i.held_by == HeldBy::kPlanner && state == InstanceState::kSuspended
                               ? s_.policy.resume.online_idle
                               : Nanoseconds(0));
    ++i.preempted.count;
    i.preempted.bytes_freed += bytes_freed;
    std::string message = bytes_freed > 0 ? format_bytes(bytes_freed) + " freed" : "";
    if (i.held_by == HeldBy::kPlanner)
        message += (message.empty() ? "" : " ") + made_way_words(i);
    enter(i, state, "", "", message);
    if (i.held_by == HeldBy::kPlanner && i.restart_at > now_)
        arm(i.aside_timer, Timer{Timer::Kind::kBackOff, i.name, {}}, i.restart_at);
    if (!i.operation)
        return;
    const auto found = s_.operations.find(*i.operation);
    if (found == s_.operations.end() || (found->second.kind != OperationKind::kPreempt &&
                                         found->second.kind != OperationKind::kDrain))
        return;
    std::string text = i.name.value + " is " + std::string(to_string(state));
    if (found->second.reached != found->second.mode)
        text += ": " + std::string(policies::to_string(found->second.mode)) +
                " was not possible in time, " +
                std::string(policies::to_string(found->second.reached)) + " was done instead";
    finish_operation(*i.operation, std::nullopt, text, bytes_freed);
}

// For what the planner took it from where it was.
std::string Step::made_way_words(const Instance& i) const {
    if (!window_open(i.spec.class_name))
        return "outside the hours of its class";
    for (const DeviceId& id : i.devices)
        if (const auto device = s_.devices.find(id);
            device != s_.devices.end() && device->second.cordoned)
            return "since " + id.value + " is cordoned";
    return "for a higher class";
}

// SIGSTOP first: what is stopped can start nothing new on the device while it is ended.
void Step::kill(Instance& i) {
    i.substate = "Killed";
    dirty(i);
    arm(i.timer, Timer{Timer::Kind::kKilled, i.name, {}}, now_ + kKilledTime);
    act(StopProcess{i.name, i.process});
    act(KillProcess{i.name, i.process});
}

void Step::on(const CommandDone& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive)
        return;
    if (i->command != event.command)
        return late_answer(*i, event);
    i->command.reset();
    dirty(*i);
    i->preempted.bytes_saved += event.saved_bytes;
    i->preempted.bytes_moved += event.moved_bytes;
    if (i->operation)
        if (const auto found = s_.operations.find(*i->operation); found != s_.operations.end()) {
            found->second.bytes_saved += event.saved_bytes;
            found->second.bytes_moved += event.moved_bytes;
            for (const auto& [name, ms] : event.phases)
                found->second.phases["engine." + name] = ms;
        }
    const bool preempting = i->state == InstanceState::kPreempting;
    switch (i->command_kind) {
    case CommandKind::kPause:
        if (!preempting)
            return;
        if (event.error)
            return rung_missed(*i, *event.error);
        return settle(*i, InstanceState::kPaused, 0);
    case CommandKind::kOffload:
        if (!preempting)
            return;
        if (event.error)
            return rung_missed(*i, *event.error);
        i->host_bytes = event.host_bytes;
        operation_phase(*i, "draining");
        return confirm(*i, event.grant_bytes);
    case CommandKind::kShrink:
        if (!preempting)
            return;
        if (event.error)
            return rung_missed(*i, *event.error);
        operation_phase(*i, "draining");
        return confirm(*i, event.grant_bytes);
    case CommandKind::kGrow:
        return grown(*i, event);
    case CommandKind::kServe:
        return served(*i, event);
    case CommandKind::kStop:
        return; // the process's end is what counts
    case CommandKind::kResume:
    case CommandKind::kRestore:
        if (i->state != InstanceState::kResuming)
            return;
        if (event.error)
            return resume_failed(*i, *event.error);
        return resume_done(*i);
    }
}

// The answer to a command that was given up: the engine has done it after all.
void Step::late_answer(Instance& i, const CommandDone& event) {
    if (!i.late_command || i.late_command != event.command)
        return;
    i.late_command.reset();
    dirty(i);
    const bool up = i.state == InstanceState::kRunning || i.state == InstanceState::kPaused;
    if (i.late_kind == CommandKind::kGrow && event.error && up && !is_growing(i)) {
        // What was reserved for it is not used; how much is, the driver says.
        i.claimed_grant_bytes = event.grant_bytes;
        i.grant_bytes_next = std::clamp<uint64_t>(event.grant_bytes, 1, i.grant_bytes);
        i.grant_state = GrantState::kReserved;
        act(ConfirmBytes{i.name, i.devices.front(), i.process});
        return;
    }
    if (i.late_kind == CommandKind::kRestore) {
        if (i.state != InstanceState::kSuspended)
            return;
        if (event.error) // what it has taken of the bytes, the driver says
            return act(ConfirmBytes{i.name, i.devices.front(), i.process});
        return begin_rung(i, Rung::kOffload, i.held_by, s_.policy.preemption.grace_period);
    }
    if (event.error || i.late_kind == CommandKind::kGrow)
        return;
    if (i.late_kind == CommandKind::kPause && i.state == InstanceState::kPreempting)
        i.pause_late = true; // undone when it runs again
    if (i.late_kind == CommandKind::kShrink && up && !i.command) {
        // It has given back what counts as its own: it is told to take it again.
        send(i, CommandKind::kGrow, i.grant_bytes);
        return;
    }
    if (i.state != InstanceState::kRunning)
        return;
    if (i.late_kind == CommandKind::kPause) {
        i.reason.clear();
        i.message.clear();
        send(i, CommandKind::kResume);
    } else if (i.late_kind == CommandKind::kOffload) {
        begin_rung(i, Rung::kOffload, HeldBy::kPlanner, s_.policy.preemption.grace_period);
    }
}

void Step::confirm(Instance& i, uint64_t claimed) {
    i.claimed_grant_bytes = claimed;
    i.substate = "Reclaiming";
    dirty(i);
    act(ConfirmBytes{i.name, i.devices.front(), i.process});
}

void Step::on(const BytesConfirmed& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive || i->devices.empty())
        return;
    if (event.process && !(event.process == i->process))
        return; // of an earlier process, whose pid may be anybody's by now
    const uint64_t slack = confirm_slack_bytes(s_.devices.at(i->devices.front()).kind);
    if (is_growing(*i)) {
        if (!i->command || i->command_kind != CommandKind::kGrow)
            grow_refused(*i, event);
        return;
    }
    if (i->state == InstanceState::kSuspended) { // after a restore that failed
        if (event.grant_bytes && *event.grant_bytes < i->grant_bytes) {
            i->grant_bytes = *event.grant_bytes;
            i->grant_state = i->session ? GrantState::kHeld : GrantState::kUnconfirmed;
            dirty(*i);
        }
        return;
    }
    if (i->state != InstanceState::kPreempting || i->substate != "Reclaiming")
        return;
    const bool shrinks = i->desired == Desired::kShrunk;
    // It says itself that it kept more.
    const bool admits = i->claimed_grant_bytes > (shrinks ? i->grant_bytes_next : 0) + slack;
    if (!admits && event.grant_bytes && *event.grant_bytes <= i->claimed_grant_bytes + slack) {
        const uint64_t left =
            std::min(std::max(*event.grant_bytes, i->claimed_grant_bytes), i->grant_bytes);
        i->grant_state = i->session ? GrantState::kHeld : GrantState::kUnconfirmed;
        if (shrinks)
            return shrunk(*i, left);
        const uint64_t freed = i->grant_bytes - left;
        i->grant_bytes = left;
        return settle(*i, InstanceState::kSuspended, freed);
    }
    if (!admits && now_ + kReconfirmInterval < i->deadline) {
        // Drivers free a moment later than the call returns.
        arm(i->aside_timer, Timer{Timer::Kind::kConfirm, i->name, {}}, now_ + kReconfirmInterval);
        return;
    }
    rung_missed(*i, Error{ErrorCode::kDeadlineExceeded,
                          "the engine says it holds " + format_bytes(i->claimed_grant_bytes) +
                              ", the driver says " +
                              (event.grant_bytes ? format_bytes(*event.grant_bytes) : "nothing"),
                          "ShortReclaim", 0});
}

void Step::on(const ProcessStopped& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !(i->process == event.process) || !is_plain_process(*i))
        return;
    if (i->state == InstanceState::kPreempting && i->desired == Desired::kPaused)
        settle(*i, InstanceState::kPaused, 0);
}

} // namespace berth::node
