// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/step.h"

#include <algorithm>

namespace berth::node {

void Step::on(const ProcessExited& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive)
        return;
    if (event.process && i->process && !(event.process == i->process))
        return; // an earlier one
    ended(*i, event.clean, event.description, event.log_path);
}

// Its bytes are free: the kernel and the driver have taken back what it held.
void Step::process_gone(Instance& i) {
    cancel_timers(i);
    if (i.weights && i.device)
        if (const auto set = s_.weights.find({*i.device, *i.weights}); set != s_.weights.end())
            set->second.last_used = now_;
    std::erase_if(s_.leases, [&i](const auto& one) { return one.second.instance == i.name; });
    i.process_alive = i.session = false;
    i.process = ProcessRef{};
    i.token_sha256.clear();
    i.endpoint.clear();
    i.weights.reset();
    i.weights_source.clear();
    i.canary_due.reset();
    i.canary_met.reset();
    i.device.reset();
    i.command.reset();
    i.late_command.reset();
    i.grant_state = GrantState::kNone;
    i.grant_bytes = i.overhead_bytes = i.host_bytes = 0;
    dirty(i);
}

void Step::ended(Instance& i, bool clean, const std::string& description,
                 const std::string& log_path) {
    const uint64_t freed = i.grant_bytes + i.overhead_bytes;
    const bool done = i.engine_state == EngineState::kSucceeded;
    const InstanceState was = i.state;
    const Desired wanted = i.desired;
    std::string how = description + (log_path.empty() ? "" : "; its log: " + log_path);
    if (!i.reason.empty())
        how = i.reason + ": " + i.message + "; " + how;
    process_gone(i);
    if (i.remove_wanted)
        return remove(i);
    if (was == InstanceState::kPreempting && wanted == Desired::kEvicted) {
        if (done) {
            settle(i, InstanceState::kSucceeded, freed);
            return;
        }
        settle(i, InstanceState::kEvicted, freed);
        if (i.restart_wanted && i.held_by == HeldBy::kNobody) {
            i.desired = Desired::kRunning;
            enter(i, InstanceState::kPending, "", "", "restarted: its document has changed");
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
    if (done || (clean && i.spec.restart != policies::RestartPolicy::kAlways &&
                 was != InstanceState::kPreempting)) {
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
    record_failure(i, "EngineDied", how);
}

void Step::record_failure(Instance& i, const std::string& reason, const std::string& message) {
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
    Nanoseconds wait = kBackOffFirst;
    for (size_t n = 1; n < i.failures.size(); ++n)
        wait = std::min(wait * 2, kBackOffMax);
    i.restart_at = now_ + wait;
    enter(i, InstanceState::kPending, "", "BackOff",
          reason + ": " + message + "; again in " + format_duration(wait));
    arm(i.aside_timer, Timer{Timer::Kind::kBackOff, i.name, {}}, i.restart_at);
}

} // namespace berth::node
