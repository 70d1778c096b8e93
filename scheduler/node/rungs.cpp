// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

#include <algorithm>

// The ladder. A rung begins with a command and a deadline. An answer in time settles it, for
// Offload only after the driver has confirmed the bytes. A missed deadline, an error or a short
// reclaim moves one rung down, if the policy's fallback is Evict; the last rung ends the process.
namespace berth::node {

using policies::Rung;

void Step::begin_rung(Instance& i, Rung rung, HeldBy held_by, Nanoseconds grace) {
    if (i.operation) {
        const auto found = s_.operations.find(*i.operation);
        if (found != s_.operations.end() && found->second.kind == OperationKind::kResume)
            finish_operation(*i.operation,
                             Error{ErrorCode::kFailedPrecondition,
                                   i.name.value + " is preempted meanwhile", "Superseded", 0},
                             "preempted meanwhile");
    }
    if (i.state != InstanceState::kPreempting)
        i.came_from = i.state;
    cancel_timers(i);
    i.desired = desired_of(rung);
    i.held_by = held_by;
    i.grace = grace;
    i.rung_started = now_;
    if (!i.process_alive) { // waits for room or for a load: there is nothing to end
        enter(i, InstanceState::kPreempting, "Stopping");
        i.device.reset();
        settle(i, InstanceState::kEvicted, 0);
        return;
    }
    const Nanoseconds reclaim = s_.policy.preemption.reclaim_deadline;
    i.deadline = now_ + (rung == Rung::kEvict ? std::max(grace, reclaim) : reclaim);
    enter(i, InstanceState::kPreempting, rung == Rung::kEvict ? "Stopping" : "Draining", "",
          std::string(policies::to_string(rung)));
    arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
    if (rung == Rung::kPause) {
        send(i, CommandKind::kPause);
    } else if (rung == Rung::kOffload) {
        i.grant_bytes_resume = i.grant_bytes;
        send(i, CommandKind::kOffload);
    } else {
        send(i, CommandKind::kStop);
        if (!i.session && i.process)
            act(TerminateProcess{i.name, i.process});
    }
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
    if (!s_.policy.preemption.fallback_evict)
        return give_up(i, why);
    const auto& modes = s_.policy.preemption.modes;
    const bool may_offload = std::find(modes.begin(), modes.end(), Rung::kOffload) != modes.end();
    const Rung next =
        rung == Rung::kPause && may_offload && i.session ? Rung::kOffload : Rung::kEvict;
    tell(i, true, why.reason.empty() ? "RungMissed" : why.reason,
         std::string(policies::to_string(rung)) + ": " + why.message +
             "; next: " + std::string(policies::to_string(next)));
    if (i.operation)
        if (const auto found = s_.operations.find(*i.operation); found != s_.operations.end())
            found->second.reached = next;
    begin_rung(i, next, i.held_by, i.grace);
}

// No rung is left that the policy allows: the instance is taken for running, as far as we know.
void Step::give_up(Instance& i, const Error& why) {
    cancel_timers(i);
    i.late_command = i.command;
    i.late_kind = i.command_kind;
    i.command.reset();
    const bool was_paused = i.came_from == InstanceState::kPaused;
    i.desired = was_paused ? Desired::kPaused : Desired::kRunning;
    i.held_by = was_paused ? i.held_by : HeldBy::kNobody;
    enter(i, was_paused ? InstanceState::kPaused : InstanceState::kRunning, "",
          why.reason.empty() ? "PreemptFailed" : why.reason, why.message);
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
    if (state == InstanceState::kSucceeded)
        i.desired = Desired::kStopped;
    i.restart_at = now_ + (i.held_by == HeldBy::kPlanner && state == InstanceState::kSuspended
                               ? s_.policy.resume.online_idle
                               : Nanoseconds(0));
    std::string message = bytes_freed > 0 ? format_bytes(bytes_freed) + " freed" : "";
    if (i.held_by == HeldBy::kPlanner)
        message += message.empty() ? "for a higher class" : " for a higher class";
    enter(i, state, "", "", message);
    if (i.held_by == HeldBy::kPlanner && i.restart_at > now_)
        arm(i.aside_timer, Timer{Timer::Kind::kBackOff, i.name, {}}, i.restart_at);
    if (!i.operation)
        return;
    const auto found = s_.operations.find(*i.operation);
    if (found == s_.operations.end() || found->second.kind != OperationKind::kPreempt)
        return;
    std::string text = i.name.value + " is " + std::string(to_string(state));
    if (found->second.reached != found->second.mode)
        text += ": " + std::string(policies::to_string(found->second.mode)) +
                " was not possible in time, " +
                std::string(policies::to_string(found->second.reached)) + " was done instead";
    finish_operation(*i.operation, std::nullopt, text, bytes_freed);
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
    if (i->operation)
        if (const auto found = s_.operations.find(*i->operation); found != s_.operations.end())
            for (const auto& [name, ms] : event.phases)
                found->second.phases["engine." + name] = ms;
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
    if (event.error || i.state != InstanceState::kRunning)
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
    act(ConfirmBytes{i.name, *i.device, i.process});
}

void Step::on(const BytesConfirmed& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive || !i->device)
        return;
    const uint64_t slack = confirm_slack_bytes(s_.devices.at(*i->device).kind);
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
    const bool admits = i->claimed_grant_bytes > slack; // it says itself that it kept more
    if (!admits && event.grant_bytes && *event.grant_bytes <= i->claimed_grant_bytes + slack) {
        const uint64_t left =
            std::min(std::max(*event.grant_bytes, i->claimed_grant_bytes), i->grant_bytes);
        const uint64_t freed = i->grant_bytes - left;
        i->grant_bytes = left;
        i->grant_state = i->session ? GrantState::kHeld : GrantState::kUnconfirmed;
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

} // namespace berth::node
