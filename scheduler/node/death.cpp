// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/service.h"
#include "scheduler/node/step.h"

#include <algorithm>

namespace berth::node {

// SIGKILL has not ended it, or may not be sent. Nothing more can be done from here: its bytes stay
// counted, nothing new goes onto its devices, and somebody who can act is told what it waits in.
void Step::become_unkillable(Instance& i, std::string reason, std::string message) {
    cancel_timers(i);
    cancel(i.serve_timer);
    i.command.reset();
    i.late_command.reset();
    i.grant_bytes_next = 0;
    const std::string process = "process " + std::to_string(i.process.pid);
    if (i.reason == "CanaryMismatch") // wrong answers do not become right by another try
        i.desired = Desired::kStopped;
    if (!i.reason.empty() && i.reason != reason)
        message = i.reason + ": " + i.message + "; " + message;
    enter(i, InstanceState::kUnkillable, "", std::move(reason), std::move(message));
    for (const DeviceId& id : i.devices)
        if (Device& device = s_.devices.at(id); !device.cordoned)
            set_cordon(device, true,
                       i.reason + ": " + process + " of instance " + i.name.value +
                           " does not end; once it has, `berth uncordon " + id.value + "`");
    act(InspectProcess{i.name, i.process});
    if (i.operation)
        finish_operation(*i.operation, Error{ErrorCode::kDeadlineExceeded, i.message, i.reason, 0},
                         i.message);
}

void Step::on(const ProcessInspected& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || i->state != InstanceState::kUnkillable || !(i->process == event.process))
        return;
    i->message += "; " + event.words;
    dirty(*i);
    tell(*i, true, "Unkillable", i->message);
}

// An operator's Evict of an Unkillable instance: what held its process may be over.
void Step::kill_again(Instance& i) {
    i.came_from = InstanceState::kRunning;
    i.desired = Desired::kEvicted;
    i.held_by = HeldBy::kOperator;
    i.rung_started = i.deadline = now_;
    enter(i, InstanceState::kPreempting, "Killed", "", "SIGKILL is sent again");
    kill(i);
}

void Step::on(const KillRefused& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive || !(i->process == event.process) ||
        i->state == InstanceState::kUnkillable)
        return;
    become_unkillable(*i, "KillRefused", event.words);
}

void Step::on(const LeaderExited& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive || i->state == InstanceState::kUnkillable ||
        (i->process && !(i->process == event.process)))
        return;
    i->reason = "LeaderExited";
    i->message = "its first process has ended (" + event.description +
                 "), and of it there is still: " + event.left;
    tell(*i, true, i->reason, i->message + "; that is ended too");
    i->substate = "Killed";
    dirty(*i);
    arm(i->timer, Timer{Timer::Kind::kKilled, i->name, {}}, now_ + kKilledTime);
}

void Step::on(const ProcessExited& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive)
        return;
    if (event.process && !(event.process == i->process))
        return; // an earlier one, or one of before its start was told
    ended(*i, event.clean, event.description, event.log_path);
}

// Its bytes are free: the kernel and the driver have taken back what it held.
void Step::process_gone(Instance& i) {
    cancel_timers(i);
    cancel(i.serve_timer);
    cancel(i.look_timer);
    i.heard_at.clear();
    i.is_silent = false;
    for (size_t rank = 0; rank < i.weights.size(); ++rank)
        if (const auto set = s_.weights.find({i.devices.at(rank), i.weights[rank]});
            set != s_.weights.end())
            set->second.last_used = now_;
    std::erase_if(s_.leases, [&i](const auto& one) { return one.second.instance == i.name; });
    i.process_alive = i.session = i.dying = i.stale_told = false;
    i.process = ProcessRef{};
    i.token_sha256.clear();
    i.serves_since.reset();
    i.identity.clear();
    i.canary_tokens.clear();
    i.endpoint.clear();
    i.weights.clear();
    i.weights_source.clear();
    i.canary_due.reset();
    i.canary_met.reset();
    i.devices.clear();
    i.others.clear();
    i.ranks = 1;
    i.command.reset();
    i.late_command.reset();
    i.pause_late = false;
    i.grant_state = GrantState::kNone;
    i.grant_bytes = i.overhead_bytes = i.host_bytes = 0;
    i.grant_bytes_next = i.grant_bytes_resume = 0; // a new process begins with what there is
    i.grow_after = TimePoint{};
    i.shrunk_by = HeldBy::kNobody;
    i.service = service_of(i.spec);
    dirty(i);
}

void Step::ended(Instance& i, bool clean, const std::string& description,
                 const std::string& log_path) {
    const uint64_t granted = i.grant_bytes, freed = granted + i.overhead_bytes;
    const bool done = i.engine_state == EngineState::kSucceeded;
    const Desired wanted = i.desired;
    InstanceState was = i.state;
    std::string how = description + (log_path.empty() ? "" : "; its log: " + log_path);
    if (was == InstanceState::kUnkillable) {
        was = wanted == Desired::kEvicted   ? InstanceState::kPreempting
              : wanted == Desired::kRunning ? InstanceState::kRunning
                                            : InstanceState::kPaused;
        std::string there;
        for (const DeviceId& id : i.places())
            there += (there.empty() ? "" : ", ") + id.value;
        tell(i, true, "EndedAfterAll",
             "process " + std::to_string(i.process.pid) + " has ended after " +
                 format_duration(now_ - i.since) + ", " + format_bytes(freed) +
                 " are free; what is cordoned of " + there + " stays so until it is uncordoned");
    }
    if (!i.reason.empty())
        how = i.reason + ": " + i.message + "; " + how;
    if (note_end(s_, i, now_))
        act(NoteRequests{InstanceName(i.service)});
    process_gone(i);
    if (i.remove_wanted)
        return remove(i);
    if (was == InstanceState::kPreempting && wanted == Desired::kEvicted) {
        if (done) {
            settle(i, InstanceState::kSucceeded, freed);
            return;
        }
        settle(i, InstanceState::kEvicted, freed);
        if (i.held_by == HeldBy::kNobody) { // also where its document is what it was again
            i.desired = Desired::kRunning;
            enter(i, InstanceState::kPending, "", "",
                  i.restart_wanted ? "restarted: its document has changed" : "starts again");
        }
        i.restart_wanted = false;
        return;
    }
    i.restart_wanted = false;
    if (i.operation)
        finish_operation(*i.operation,
                         Error{ErrorCode::kUnavailable,
                               "the process of " + i.name.value + " ended meanwhile (" + how +
                                   "); its bytes are free",
                               "EngineDied", 0},
                         how, freed);
    // Wrong answers do not become right by another try.
    if (i.reason == "CanaryMismatch" &&
        (was == InstanceState::kStarting || was == InstanceState::kRunning)) {
        i.desired = Desired::kStopped;
        return enter(i, InstanceState::kFailed, "", "CanaryMismatch", std::string(i.message));
    }
    if (wanted == Desired::kStopped && !done && i.state == InstanceState::kUnkillable)
        return enter(i, InstanceState::kFailed, "", "EngineDied", how);
    // A service is never done: one that ends without being asked to is started again.
    const bool serves = !i.spec.engine.listen.empty();
    const bool may_end = i.spec.restart == policies::RestartPolicy::kNever ||
                         (i.spec.restart == policies::RestartPolicy::kOnFailure && !serves);
    if (done || (clean && may_end && was != InstanceState::kPreempting)) {
        i.desired = Desired::kStopped;
        return enter(i, InstanceState::kSucceeded, "", "", how);
    }
    const bool parked = was == InstanceState::kPreempting || was == InstanceState::kPaused ||
                        was == InstanceState::kSuspended;
    if (parked) { // nobody wants it to run now; what is left of it is its work on record
        i.desired = Desired::kEvicted;
        i.restart_at = now_;
        if (i.held_by == HeldBy::kNobody)
            i.held_by = HeldBy::kPlanner;
        return enter(i, InstanceState::kEvicted, "", "EngineDied", how);
    }
    if (i.spec.restart == policies::RestartPolicy::kNever) {
        i.desired = Desired::kStopped;
        return enter(i, InstanceState::kFailed, "", "EngineDied", how);
    }
    // Its first start has told what it stands by on: no failure of its own.
    if (i.reason == "GrantTooSmall" && i.floor_only && granted < grant_bytes_min(i))
        return enter(i, InstanceState::kPending, "", "",
                     "stands by on " + format_bytes(grant_bytes_min(i)) +
                         " from now on: it has said that it needs as much");
    // Whoever has answered or stood by for a while is in no loop: what ended it is another matter.
    const bool steady =
        was == InstanceState::kRunning && serves && now_ - i.running_since >= kSteadyTime;
    const bool left = clean && serves;
    if (left)
        how = "it was not asked to end: " + how;
    record_failure(i, left ? "EngineEnded" : "EngineDied", how, steady);
}

// After a steady time it is the first failure, and nobody need wait for the next try.
void Step::record_failure(Instance& i, std::string reason, std::string message, bool steady) {
    if (steady)
        i.failures.clear();
    std::erase_if(i.failures, [this](TimePoint at) { return now_ - at > kCrashWindow; });
    i.failures.push_back(now_);
    i.desired = Desired::kRunning;
    i.held_by = HeldBy::kNobody;
    if (i.operation)
        finish_operation(*i.operation, Error{ErrorCode::kUnavailable, message, reason, 0}, message);
    if (i.failures.size() >= kCrashesMax) {
        i.desired = Desired::kStopped;
        return enter(i, InstanceState::kFailed, "", "CrashLoop",
                     std::to_string(i.failures.size()) + " failures within " +
                         format_duration(kCrashWindow) + "; the last: " + message +
                         "; `berth resume " + i.name.value + "` tries again");
    }
    ++i.restarts;
    Nanoseconds wait = steady ? Nanoseconds(0) : kBackOffFirst;
    for (size_t n = 1; n < i.failures.size(); ++n)
        wait = std::min(wait * 2, kBackOffMax);
    i.restart_at = now_ + wait;
    enter(i, InstanceState::kPending, "", "BackOff",
          reason + ": " + message + "; again " +
              (steady ? "at once" : "in " + format_duration(wait)));
    if (!steady)
        arm(i.aside_timer, Timer{Timer::Kind::kBackOff, i.name, {}}, i.restart_at);
}

} // namespace berth::node
