// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/rollout_step.h"
#include "scheduler/node/service.h"

#include <algorithm>
#include <utility>

// A rollout's phases. Each looks at facts alone (who is ready, who serves, who has failed), so that
// it goes on from wherever a restart of the daemon finds it. Until the new one serves, the old one
// has not been asked for anything; and whatever fails, the way leads back to the document before.
namespace berth::node {

namespace {

// It answers, and has been told to.
bool serves(const Instance& i) {
    return i.state == InstanceState::kRunning && i.substate != "Killed" && may_act(i) &&
           !i.stands_by && !i.serve_timer && (i.session || is_plain_process(i));
}

// Its process is what its document says.
bool is_current(const Instance& i) {
    return i.process_alive && !i.restart_wanted && !i.remove_wanted;
}

bool is_up(const Instance& i) {
    return is_current(i) && ((is_warm(i) && i.session) || serves(i));
}

// It does not come by itself.
bool stays_away(const Instance& i) {
    return !i.process_alive &&
           (i.on_hold || i.state == InstanceState::kFailed ||
            i.state == InstanceState::kSucceeded ||
            (i.state == InstanceState::kEvicted && i.held_by == HeldBy::kOperator));
}

} // namespace

Instance* Step::Rolling::second(const Rollout& r) const {
    if (r.first == r.instance && r.standby)
        return find(InstanceName(r.standby->name));
    return find(r.instance);
}

Instance* Step::Rolling::who_serves(const Rollout& r) const {
    for (auto& [name, i] : step.s_.instances)
        if ((name == r.instance || i.service == r.instance.value) && serves(i))
            return &i;
    return nullptr;
}

bool Step::Rolling::watch() {
    if (!step.s_.ready || step.s_.stopping)
        return false;
    bool any = false;
    for (auto& [name, r] : step.s_.rollouts)
        if (r.is_under_way())
            any = go_on(r) || any;
    return any;
}

bool Step::Rolling::go_on(Rollout& r) {
    switch (r.phase) {
    case RolloutPhase::kStarting:
    case RolloutPhase::kReady:
        return start(r);
    case RolloutPhase::kHandingOver:
        return hand_over(r);
    case RolloutPhase::kFollowing:
        return follow(r);
    case RolloutPhase::kReturning:
        return come_back(r);
    case RolloutPhase::kReplacing:
        return replace(r);
    case RolloutPhase::kReverting:
        return revert(r);
    default:
        return false;
    }
}

bool Step::Rolling::start(Rollout& r) {
    if (const auto why = trouble(r.first, r.started, true)) {
        if (const Room room = make_room(r); room != Room::kNone)
            return room == Room::kAsked;
        if (r.may_stop && r.surge && is_for_room(why->reason)) {
            r.first = InstanceName();
            r.surge_stays = false;
            enter(r, RolloutPhase::kReplacing,
                  "there is no room beside it (" + why->message + "), and it may be away");
        } else {
            fail(r, *why);
        }
        return true;
    }
    const Instance& first = *find(r.first);
    if (!is_up(first) || awaits_old(r))
        return false;
    if (const auto why = disagreement(r)) {
        fail(r, *why);
        return true;
    }
    if (!r.paused) {
        enter(r, RolloutPhase::kHandingOver,
              first.name.value + " is ready; the other ends and hands over");
        return true;
    }
    if (r.phase == RolloutPhase::kReady)
        return false;
    enter(r, RolloutPhase::kReady,
          first.name.value + " is ready; `berth rollout resume " + r.instance.value +
              "` lets it take over");
    return true;
}

bool Step::Rolling::hand_over(Rollout& r) {
    if (const auto why = trouble(r.first, r.started, true)) {
        fail(r, *why);
        return true;
    }
    const Instance& first = *find(r.first);
    if (!serves(first) || !is_current(first))
        return false;
    const Instance* other = second(r);
    enter(r, RolloutPhase::kFollowing,
          first.name.value + " serves with the new document, as generation " +
              std::to_string(first.generation) + "; " +
              (other == nullptr ? "the other" : other->name.value) + " starts again behind it");
    return true;
}

bool Step::Rolling::follow(Rollout& r) {
    const Instance* other = second(r);
    if (const auto why = trouble(other == nullptr ? r.instance : other->name, r.since, false)) {
        fail(r, *why);
        return true;
    }
    if (!is_up(*other))
        return false;
    if (r.surge) {
        r.surge_stays = false;
        enter(r, RolloutPhase::kReturning,
              other->name.value + " is ready with the new document and takes back from " +
                  r.first.value);
    } else {
        complete(r, "served without a gap");
    }
    return true;
}

bool Step::Rolling::come_back(Rollout& r) {
    if (const auto why = trouble(r.instance, r.since, false)) {
        fail(r, *why);
        return true;
    }
    const Instance& i = *find(r.instance);
    if (find(r.first) != nullptr || !serves(i) || !is_current(i))
        return false;
    complete(r, "served without a gap");
    return true;
}

bool Step::Rolling::replace(Rollout& r) {
    if (const auto why = trouble(r.instance, r.since, true)) {
        fail(r, *why);
        return true;
    }
    const Instance* i = who_serves(r);
    if (i == nullptr && !r.stopped_at) {
        r.stopped_at = step.now_;
        step.act(PersistRollout{r});
    }
    if (i == nullptr || !is_current(*i))
        return false;
    if (r.stopped_at)
        r.gap = step.now_ - *r.stopped_at;
    r.stopped_at.reset();
    complete(r, "nobody served for " + format_duration(r.gap));
    return true;
}

// Whoever serves with the new document does until the other is ready with the one before; also
// where an operator keeps that one away.
bool Step::Rolling::revert(Rollout& r) {
    const Instance* i = find(r.instance);
    const Instance* surge = r.surge ? find(surge_name(r.instance)) : nullptr;
    const bool away = stays_away(*i);
    if (r.surge_stays && (surge == nullptr || stays_away(*surge) || is_up(*i))) {
        r.surge_stays = false;
        apply(r);
        return true;
    }
    if (surge != nullptr)
        return false;
    const Instance* active = who_serves(r);
    const bool parked = is_current(*i) && (i->state == InstanceState::kPaused ||
                                           i->state == InstanceState::kSuspended);
    if ((active == nullptr || !is_current(*active)) && !parked && !away)
        return false;
    std::string words = active != nullptr ? active->name.value + " serves with the document before"
                                          : state_words(*i) + ", with the document before";
    if (r.stopped_at) {
        r.gap = step.now_ - *r.stopped_at;
        r.stopped_at.reset();
    }
    over(r, r.undo ? RolloutPhase::kUndone : RolloutPhase::kFailed, words);
    return true;
}

void Step::Rolling::fail(Rollout& r, const Error& why) {
    r.reason = why.reason;
    r.message = why.message;
    const bool untouched = r.phase == RolloutPhase::kStarting || r.phase == RolloutPhase::kReady;
    tell(r, true, "RolloutFailed",
         why.reason + ": " + why.message +
             (untouched ? "; the one that serves goes on as it was"
                        : "; back to the document before"));
    Decision told;
    told.kind = "Rollout";
    told.object = "instance/" + r.instance.value;
    told.inputs.emplace_back("phase", std::string(to_string(r.phase)));
    told.outcome = "failed: " + why.reason + ": " + why.message;
    told.carried_out = false;
    step.act(std::move(told));
    go_back(r, "");
}

void Step::Rolling::go_back(Rollout& r, const std::string& words) {
    const Instance* surge = r.surge ? find(surge_name(r.instance)) : nullptr;
    r.surge_stays = surge != nullptr && r.surge_stays && !surge->stands_by && may_act(*surge);
    r.paused = false;
    enter(r, RolloutPhase::kReverting, words);
}

void Step::Rolling::complete(Rollout& r, const std::string& words) {
    r.reason.clear();
    r.adopted = r.said == r.after;
    over(r, RolloutPhase::kComplete, words);
    Decision told;
    told.kind = "Rollout";
    told.object = "instance/" + r.instance.value;
    told.inputs.emplace_back("number", std::to_string(r.number));
    told.winner = r.instance.value;
    told.outcome = "complete: " + words;
    step.act(std::move(told));
    if (!r.adopted)
        step.act(AdoptDocument{r.after});
}

void Step::Rolling::over(Rollout& r, RolloutPhase phase, const std::string& words) {
    if (phase == RolloutPhase::kComplete)
        r.message = words;
    r.paused = r.surge_stays = false;
    r.phase = phase;
    r.since = step.now_;
    tell(r, false,
         phase == RolloutPhase::kComplete ? "RolloutComplete"
         : phase == RolloutPhase::kUndone ? "RolloutUndone"
                                          : "RolloutReverted",
         words);
    apply(r);
}

void Step::Rolling::enter(Rollout& r, RolloutPhase phase, const std::string& words) {
    r.phase = phase;
    r.since = step.now_;
    if (!words.empty()) {
        r.message = words;
        tell(r, false, "Rollout", std::string(to_string(phase)) + ": " + words);
    }
    apply(r);
}

void Step::Rolling::tell(const Rollout& r, bool warning, const char* reason,
                         const std::string& words) {
    step.act(EmitEvent{warning, "instance/" + r.instance.value, reason,
                       "rollout " + std::to_string(r.number) + ": " + words});
}

// Each process of the service is given the document that the phase wants it to have.
void Step::Rolling::apply(Rollout& r) {
    step.act(PersistRollout{r});
    lay_rollouts(step.s_.rollouts, step.s_.documents);
    for (const policies::InstanceSpec& spec : step.s_.documents.instances)
        if (spec.name == r.instance.value || spec.standby_of == r.instance.value)
            step.follow_document(spec);
    const InstanceName surge = surge_name(r.instance);
    if (Instance* i = find(surge);
        i != nullptr && step.s_.documents.find_instance(surge.value) == nullptr)
        step.remove(*i);
    step.act(TellRules{});
}

} // namespace berth::node
