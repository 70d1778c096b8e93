// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/rollout_step.h"
#include "scheduler/node/watching.h"

// Timers that have fired. What they belong to may be gone or further on: then nothing happens.
namespace berth::node {

namespace {

// What was not answered in time, in words.
Error lateness(const Instance& i, Timer::Kind kind, TimePoint now) {
    const bool reclaiming = i.substate == "Reclaiming";
    const std::string taken = format_duration(now - i.rung_started);
    std::string words = "the engine has not answered " + std::string(to_string(i.command_kind)) +
                        " within " + taken;
    if (reclaiming)
        words = "the driver has not confirmed the freed bytes in time";
    else if (kind == Timer::Kind::kReconnect)
        words = "the engine has not come back within " + format_duration(kReconnectTime);
    else if (is_plain_process(i) && i.desired == Desired::kPaused)
        words = "the process and all that it has started do not stand still " + taken +
                " after SIGSTOP";
    else if (is_plain_process(i) && i.desired == Desired::kEvicted)
        words = "the process has not ended within " + taken + " of SIGTERM";
    return Error{ErrorCode::kDeadlineExceeded, std::move(words),
                 reclaiming ? "ShortReclaim" : "DeadlineExceeded", 0};
}

} // namespace

void Step::on(const DeadlineExpired& event) {
    const auto found = s_.timers.find(event.timer);
    if (found == s_.timers.end())
        return;
    const Timer timer = found->second;
    s_.timers.erase(found);
    if (timer.kind == Timer::Kind::kLoadStall) {
        load_stalled(timer.load);
        return;
    }
    if (timer.kind == Timer::Kind::kPlan) {
        s_.plan_timer.reset();
        return; // schedule() looks at what is due
    }
    if (s_.tier_timer == event.timer)
        s_.tier_timer.reset(); // schedule_tiers() looks at what is due
    if (timer.kind == Timer::Kind::kRollout)
        return Rolling{*this}.adopt_again(timer.instance);
    Instance* i = find(timer.instance);
    if (i == nullptr)
        return;
    if (i->timer == event.timer)
        i->timer.reset();
    if (i->aside_timer == event.timer)
        i->aside_timer.reset();
    if (i->serve_timer == event.timer)
        i->serve_timer.reset();
    if (i->look_timer == event.timer)
        i->look_timer.reset();
    switch (timer.kind) {
    case Timer::Kind::kRung:
    case Timer::Kind::kReconnect: {
        const Error late = lateness(*i, timer.kind, now_);
        if (i->state == InstanceState::kPreempting)
            rung_missed(*i, late);
        else if (i->state == InstanceState::kResuming)
            resume_failed(*i, late);
        break;
    }
    case Timer::Kind::kStart:
        i->reason = "StartTimedOut";
        i->message = "not Ready within " + format_duration(i->spec.engine.start_deadline);
        tell(*i, true, i->reason, i->message + "; its process is ended");
        kill(*i);
        break;
    case Timer::Kind::kConfirm:
        if (i->state == InstanceState::kPreempting && i->substate == "Reclaiming")
            act(ConfirmBytes{i->name, i->devices.front(), i->process});
        break;
    case Timer::Kind::kKilled:
        if (i->substate != "Killed") {
            kill(*i);
            break;
        }
        if (!i->process) // recovered without a pid, and never seen since
            return ended(*i, false, "its process was never seen", "");
        become_unkillable(*i, "ProcessWontEnd",
                          "process " + std::to_string(i->process.pid) +
                              ", with all that it has started, was sent SIGKILL and is still "
                              "there after " +
                              format_duration(kKilledTime) +
                              "; its bytes stay counted until the last one has ended");
        break;
    case Timer::Kind::kGrow:
        grow_unanswered(*i);
        break;
    case Timer::Kind::kServe:
        serve_due(*i);
        break;
    case Timer::Kind::kLook:
        Watching{*this}.look(*i);
        break;
    case Timer::Kind::kRollout:
    case Timer::Kind::kBackOff:
    case Timer::Kind::kLoadStall:
    case Timer::Kind::kTiers:
    case Timer::Kind::kPlan:
        break; // schedule() looks at what is due
    }
}

} // namespace berth::node
