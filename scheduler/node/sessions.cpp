// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/limits.h"
#include "scheduler/node/service.h"
#include "scheduler/node/watching.h"

#include <algorithm>
#include <utility>

namespace berth::node {

void Step::on(const ProcessStarted& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive)
        return;
    i->process = event.process;
    i->token_sha256 = event.token_sha256;
    i->others = event.others;
    dirty(*i);
    if (i->substate == "Killed") {
        kill(*i);
    } else if (i->state == InstanceState::kPreempting && (is_plain_process(*i) || !i->session)) {
        act(TerminateProcess{i->name, i->process});
    } else if (i->state == InstanceState::kStarting && is_plain_process(*i)) {
        i->grant_state = GrantState::kHeld; // it has no session that could say Ready
        become_running(*i);
    }
}

void Step::on(const ProcessStartFailed& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive || i->process)
        return;
    // Whoever holds the address gives it back, or ends: that is no failure of this one's.
    if (event.error.reason == "AddressInUse" && i->state == InstanceState::kStarting &&
        !i->remove_wanted) {
        process_gone(*i);
        i->restart_at = now_ + kListenRetryTime;
        enter(*i, InstanceState::kPending, "", "BackOff",
              event.error.message + "; again in " + format_duration(kListenRetryTime));
        return arm(i->aside_timer, Timer{Timer::Kind::kBackOff, i->name, {}}, i->restart_at);
    }
    ended(*i, false, "could not be started: " + event.error.message, "");
}

void Step::become_running(Instance& i) {
    cancel_timers(i);
    if (i.state == InstanceState::kStarting)
        i.start_took = now_ - i.since;
    i.desired = Desired::kRunning;
    enter(i, InstanceState::kRunning);
    if (!i.service.empty() && !i.stands_by)
        serve(i);
    if (i.operation && !promotes(s_, i))
        finish_operation(*i.operation, std::nullopt, i.name.value + " is Running");
}

// An engine that holds more than its grant endangers its neighbours: it is ended.
bool Step::check_claim(Instance& i, uint64_t grant_bytes) {
    const uint64_t slack = confirm_slack_bytes(s_.devices.at(i.devices.front()).kind);
    // On the way down the old size counts until the new one is confirmed, on the way up the new one
    // at once: in between, either is right.
    if (grant_bytes <= i.grant_bytes + slack)
        return true;
    if (i.substate == "Killed" || i.state == InstanceState::kUnkillable)
        return false;
    i.reason = "GrantExceeded";
    i.message =
        "holds " + format_bytes(grant_bytes) + ", granted were " + format_bytes(i.grant_bytes);
    tell(i, true, i.reason, i.message + "; its process is ended");
    kill(i);
    return false;
}

void Step::on(const SessionOpened& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->process_alive || i->devices.empty())
        return;
    // Nobody has a token before ProcessStarted: this is a late word of an earlier process.
    if (!i->process && i->token_sha256.empty())
        return;
    i->session = true;
    Watching{*this}.begin(*i);
    if (!i->process)
        i->process = event.process;
    i->program = event.program;
    if (!event.endpoint.empty())
        i->endpoint = event.endpoint;
    if (event.engine_state != EngineState::kUnknown)
        i->engine_state = event.engine_state;
    if (!event.identity.empty())
        i->identity = event.identity;
    if (!event.canary_tokens.empty())
        i->canary_tokens = event.canary_tokens;
    const bool reserved = i->state == InstanceState::kResuming || is_growing(*i);
    if (!reserved || i->grant_state != GrantState::kReserved)
        i->grant_state = GrantState::kHeld;
    dirty(*i);
    if (!check_claim(*i, event.grant_bytes) || i->substate == "Killed")
        return;
    reconcile(*i, event.held, event.grant_bytes);
    if (i->state == InstanceState::kRunning)
        reconcile_service(*i, event.generation);
}

// What the engine is and what the records say are brought together: the engine's facts count, and
// what was on its way to it is sent again.
void Step::reconcile(Instance& i, EngineHeld held, uint64_t grant_bytes) {
    if (held == EngineHeld::kStandby) // that is no matter of its memory
        held = EngineHeld::kNothing;
    switch (i.state) {
    case InstanceState::kStarting:
        if (i.engine_state == EngineState::kReady)
            ready(i);
        return;
    case InstanceState::kRunning:
        if (i.reason == "EngineNotConnected")
            enter(i, i.state);
        if (held == EngineHeld::kOffloaded)
            return begin_rung(i, policies::Rung::kOffload, HeldBy::kPlanner,
                              s_.policy.preemption.grace_period);
        if (held == EngineHeld::kPaused)
            send(i, CommandKind::kResume);
        return reconcile_growth(i, grant_bytes);
    case InstanceState::kPaused:
        if (held == EngineHeld::kNothing)
            return begin_rung(i, policies::Rung::kPause, i.held_by,
                              s_.policy.preemption.grace_period);
        return reconcile_growth(i, grant_bytes);
    case InstanceState::kSuspended:
        if (held != EngineHeld::kOffloaded)
            begin_rung(i, policies::Rung::kOffload, i.held_by, s_.policy.preemption.grace_period);
        return;
    case InstanceState::kPreempting:
        if (i.desired == Desired::kPaused && held == EngineHeld::kPaused)
            return settle(i, InstanceState::kPaused, 0);
        if (i.desired == Desired::kSuspended && held == EngineHeld::kOffloaded) {
            cancel_timers(i);
            i.command.reset();
            i.deadline = now_ + s_.policy.preemption.reclaim_deadline;
            arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
            return confirm(i, grant_bytes);
        }
        if (i.desired == Desired::kShrunk)
            return reconcile_shrink(i, held, grant_bytes);
        if (i.engine_state == EngineState::kDraining)
            i.grace = std::max(i.grace, kHandOverTime);
        else if (i.desired == Desired::kEvicted && !is_timed(i)) // it is not on record
            i.grace = std::max(i.grace, end_grace(s_, i));
        return take_rung(i, rung_of(i.desired), true);
    case InstanceState::kResuming: {
        if (held == EngineHeld::kNothing)
            return resume_done(i);
        if (!is_timed(i)) {
            i.rung_started = now_;
            i.deadline = now_ + s_.policy.resume.verify_timeout;
        }
        arm(i.timer, Timer{Timer::Kind::kRung, i.name, {}}, i.deadline);
        const bool restore = held == EngineHeld::kOffloaded;
        send(i, restore ? CommandKind::kRestore : CommandKind::kResume,
             restore ? i.grant_bytes : 0);
        return;
    }
    default:
        return;
    }
}

void Step::on(const SessionClosed& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->session)
        return;
    i->session = false;
    // The process still has its mapping and its grant: nobody else gets those bytes.
    if (i->grant_state == GrantState::kHeld)
        i->grant_state = GrantState::kUnconfirmed;
    dirty(*i);
}

void Step::on(const EngineStateChanged& event) {
    Instance* i = find(event.instance);
    if (i == nullptr || !i->session)
        return;
    i->engine_state = event.state;
    if (!event.endpoint.empty())
        i->endpoint = event.endpoint;
    for (const auto& [name, ms] : event.phases)
        i->phases[name] = ms;
    dirty(*i);
    learn_least(s_, *i, event.grant_bytes_least);
    if (!event.identity.empty())
        i->identity = event.identity;
    if (!event.canary_tokens.empty())
        i->canary_tokens = event.canary_tokens;
    if (!event.weights.empty() && event.weights != i->weights_source) {
        i->weights_source = event.weights;
        if (event.weights.starts_with("private"))
            tell(*i, true, "PrivateWeights", "weights: " + event.weights);
    }
    if (event.state == EngineState::kReady && i->state == InstanceState::kStarting) {
        ready(*i);
    } else if (event.state == EngineState::kFailed) {
        i->reason = event.reason.empty() ? "EngineFailed" : event.reason;
        i->message = event.message;
        tell(*i, true, i->reason, i->message);
    }
    const bool over = event.state == EngineState::kSucceeded || event.state == EngineState::kFailed;
    if (over && (i->state == InstanceState::kRunning || i->state == InstanceState::kStarting) &&
        i->substate != "Killed")
        arm(i->timer, Timer{Timer::Kind::kKilled, i->name, {}}, now_ + kEndTime);
}

void Step::on(const EngineReport& event) {
    // Not worth a record; and the figures may be a moment old, so nothing is concluded from one but
    // what the engine itself concludes.
    plans_ = false;
    Instance* i = find(event.instance);
    if (i == nullptr || !i->session)
        return;
    const auto idles = [](const Counters& one) {
        return one.requests_waiting > 0 && one.requests_running == 0;
    };
    const policies::PriorityClass* of_class = s_.policy.find_class(i->spec.class_name);
    const bool says_so = event.counters.short_of_memory > 0 && of_class != nullptr &&
                         of_class->preempts_lower; // others always have more that could be done
    i->cramped = says_so || (idles(i->counters) && idles(event.counters) &&
                             i->counters.requests_done == event.counters.requests_done);
    i->counters = event.counters;
    plans_ = weigh_report(*i) || i->cramped;
    Watching{*this}.heard(*i, 0);
    Watching{*this}.at_step(*i);
}

} // namespace berth::node
