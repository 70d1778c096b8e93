// SPDX-License-Identifier: Apache-2.0
#include "policies/yaml.h"
#include "scheduler/node/rollout_step.h"
#include "scheduler/node/service.h"

#include <utility>

// What operators ask of rollouts.
namespace berth::node {

namespace {

using policies::InstanceSpec;
using Verb = OperatorRollout::Verb;

OperationKind kind_of(Verb verb) {
    switch (verb) {
    case Verb::kBegin:
        return OperationKind::kRollout;
    case Verb::kPause:
        return OperationKind::kRolloutPause;
    case Verb::kResume:
        return OperationKind::kRolloutResume;
    case Verb::kUndo:
        break;
    }
    return OperationKind::kRolloutUndo;
}

Error precondition(std::string words, std::string reason) {
    return Error{ErrorCode::kFailedPrecondition, std::move(words), std::move(reason), 0};
}

// Why one process cannot hand over to another; empty: it can.
std::string no_hand_over(const InstanceSpec& before, const InstanceSpec& after) {
    for (const InstanceSpec* one : {&before, &after})
        if (one->engine.listen.empty() || one->engine.driver != policies::DriverKind::kBerth)
            return std::string(one == &before ? "it has" : "it would have") +
                   " no engine.listen with driver berth, so it has no socket that could be handed "
                   "over";
    if (before.engine.listen != after.engine.listen)
        return "engine.listen changes from " + before.engine.listen + " to " + after.engine.listen +
               ", and a socket that is handed over stays what it is";
    return "";
}

bool is_same_process(const NodeState& state, const InstanceSpec& one, const InstanceSpec& other) {
    return policies::process_digest(one, state.documents.find_model(one.model)) ==
               policies::process_digest(other, state.documents.find_model(other.model)) &&
           service_of(one) == service_of(other);
}

} // namespace

void Step::on(const OperatorRollout& event) {
    Rolling{*this}.asked(event);
}

void Step::on(const RolloutRecovered& event) {
    s_.rollouts[event.rollout.instance] = event.rollout;
}

void Step::Rolling::asked(const OperatorRollout& event) {
    if (step.s_.operations.contains(event.operation))
        return;
    Operation operation = requested(event, kind_of(event.verb));
    if (event.verb == Verb::kBegin)
        return begin(event, std::move(operation), false);
    const auto found = step.s_.rollouts.find(event.instance);
    if (found == step.s_.rollouts.end())
        return step.refuse_operation(
            operation,
            Error{ErrorCode::kNotFound, "no rollout of '" + event.instance.value + "' is on record",
                  "RolloutNotFound", 0});
    if (event.verb == Verb::kUndo)
        return undo(event, std::move(operation), found->second);
    pause(event, std::move(operation), found->second);
}

// Who stands by for it, as the documents want it; not one that is leaving.
const Instance* Step::Rolling::standby(const Instance& i) const {
    const InstanceSpec* spec = standby_of(step.s_.documents, i.name.value);
    return spec == nullptr ? nullptr : find(InstanceName(spec->name));
}

// What speaks against beginning one.
std::optional<Error> Step::Rolling::refusal(const OperatorRollout& event, const Instance& i) const {
    const std::string name = i.name.value;
    if (is_surge(i.name) || !i.spec.standby_of.empty())
        return precondition(name + " stands by for " + i.spec.standby_of +
                                " and has its document: `berth rollout " + i.spec.standby_of + "`",
                            "StandsBy");
    const auto last = step.s_.rollouts.find(i.name);
    if (last != step.s_.rollouts.end() && last->second.is_under_way())
        return precondition("rollout " + std::to_string(last->second.number) + " of " + name +
                                " is under way (" + std::string(to_string(last->second.phase)) +
                                "): wait for it (`berth rollout status " + name +
                                "`), or `berth rollout undo " + name + "`",
                            "RolloutInProgress");
    if (last != step.s_.rollouts.end() && last->second.phase == RolloutPhase::kComplete &&
        !last->second.adopted)
        return precondition("what the last rollout of " + name +
                                " has come to is not kept by the documents yet; ask again",
                            "RolloutNotKept");
    if (!event.spec.model.empty() && step.s_.documents.find_model(event.spec.model) == nullptr)
        return precondition("no Model '" + event.spec.model + "': apply it first (`berth apply`)",
                            "ModelNotFound");
    if (step.s_.policy.find_class(event.spec.class_name) == nullptr)
        return precondition("no class '" + event.spec.class_name + "': apply a policy that has it",
                            "UnknownClass");
    if (i.remove_wanted)
        return precondition(name + " is being removed", "Removed");
    if (!i.process_alive || is_same_process(step.s_, i.spec, event.spec))
        return std::nullopt;
    if (i.on_hold)
        return precondition(name + " is on hold, and would not be started again: `berth release " +
                                name + "` first",
                            "OnHold");
    if (i.operation)
        return precondition(name + ": operation " + i.operation->value +
                                " is under way; wait for it",
                            "OperationInProgress");
    if (const std::string why = no_hand_over(i.spec, event.spec); !why.empty() && !event.in_place)
        return precondition(name + " cannot be replaced while it serves: " + why +
                                "; --in-place stops it first: " + gap_words(step.s_, i, event.spec),
                            "NeedsInPlace");
    if (auto no = no_place(event, i))
        return no;
    const Instance* twin = standby(i);
    const bool runs = (i.state == InstanceState::kRunning && (i.session || is_plain_process(i))) ||
                      (twin != nullptr && twin->state == InstanceState::kRunning && twin->session);
    if (!runs)
        return precondition(name + " is " + std::string(to_string(i.state)) +
                                (i.session || is_plain_process(i) ? "" : " and not connected") +
                                ": a rollout begins while it runs",
                            "NotRunning");
    return std::nullopt;
}

// In words, before it begins.
std::string Step::Rolling::plan_words(const OperatorRollout& event, const Instance& i) const {
    const std::string name = i.name.value;
    if (event.in_place)
        return name + " is stopped and started again with the new document: " +
               gap_words(step.s_, i, event.spec);
    const Instance* twin = standby(i);
    if (twin != nullptr)
        return (i.stands_by ? name : twin->name.value) +
               ", which stands by, starts again with the new document first; when it is ready, it "
               "takes over";
    return surge_name(i.name).value +
           " is started beside it with the new document; when it is ready, it takes over, " + name +
           " starts again behind it and takes back";
}

// Nothing has to be started: the document holds from now on.
bool Step::Rolling::take_at_once(const OperatorRollout& event, Operation& operation,
                                 const Instance& i) {
    std::string words;
    if (event.spec == i.spec)
        words = i.name.value + " is what that document says already";
    else if (!i.process_alive)
        words = i.name.value + " has no process; the document holds from its next start";
    else if (is_same_process(step.s_, i.spec, event.spec))
        words = "it holds at once; no process had to be replaced";
    else
        return false;
    if (!event.dry_run && !(event.spec == i.spec)) {
        Rollout r;
        const auto last = step.s_.rollouts.find(i.name);
        r.number = last == step.s_.rollouts.end() ? 1 : last->second.number + 1;
        r.instance = i.name;
        r.before = r.said = i.spec;
        r.after = event.spec;
        r.cause = event.reason;
        r.started = step.now_;
        if (const InstanceSpec* other = standby_of(step.s_.documents, i.name.value))
            r.standby = *other;
        complete(step.s_.rollouts[i.name] = std::move(r), words);
    }
    step.answer_operation(std::move(operation), words);
    return true;
}

void Step::Rolling::begin(OperatorRollout event, Operation operation, bool undoes) {
    Instance* i = find(event.instance);
    if (i == nullptr)
        return step.refuse_operation(operation, instance_not_found(event.instance));
    // Its Model may have become one of other ranks since the document was checked.
    if (Status fits = policies::complete_ranks(event.spec, step.s_.documents); !fits)
        return step.refuse_operation(operation, fits.error());
    if (auto no = refusal(event, *i))
        return step.refuse_operation(operation, std::move(*no));
    if (take_at_once(event, operation, *i))
        return;
    const std::string words = plan_words(event, *i);
    if (event.dry_run)
        return step.answer_operation(operation, words);
    const auto last = step.s_.rollouts.find(i->name);
    Rollout r;
    r.instance = i->name;
    r.number = last == step.s_.rollouts.end() ? 1 : last->second.number + 1;
    r.gap = last == step.s_.rollouts.end() ? Nanoseconds(0) : last->second.gap;
    r.before = r.said = i->spec;
    r.after = event.spec;
    r.paused = event.pause && !event.in_place;
    r.may_stop = event.may_stop;
    r.goes_back = undoes;
    r.cause = event.reason;
    r.started = step.now_;
    if (const InstanceSpec* other = standby_of(step.s_.documents, i->name.value))
        r.standby = *other;
    const Instance* twin = standby(*i);
    if (!event.in_place && twin != nullptr) {
        r.first = i->stands_by ? i->name : twin->name;
    } else if (!event.in_place) {
        r.surge = r.surge_stays = true;
        r.first = surge_name(i->name);
    }
    if (Instance* first = find(r.first);
        first != nullptr && !first->process_alive && first->state == InstanceState::kPending) {
        first->failures.clear(); // those were of another document
        first->restart_at = step.now_;
        step.enter(*first, InstanceState::kPending, "", "", "its document has changed");
    }
    Rollout& kept = step.s_.rollouts[i->name] = std::move(r);
    tell(kept, false, "RolloutBegun", (undoes ? "undoes the one before: " : "") + words);
    enter(kept, kept.is_in_place() ? RolloutPhase::kReplacing : RolloutPhase::kStarting, words);
    step.schedule(); // whether there is room for it is known then
    watch();
    answer_begun(operation, words);
}

void Step::Rolling::answer_begun(const Operation& operation, const std::string& words) {
    const Rollout& r = step.s_.rollouts.at(operation.instance);
    if (!r.reason.empty())
        return step.refuse_operation(operation,
                                     Error{ErrorCode::kFailedPrecondition, r.message, r.reason, 0});
    step.answer_operation(operation, "rollout " + std::to_string(r.number) + " of " +
                                         r.instance.value + " has begun: " + words);
}

void Step::Rolling::pause(const OperatorRollout& event, Operation operation, Rollout& r) {
    const bool wanted = event.verb == Verb::kPause;
    const std::string which = "rollout " + std::to_string(r.number) + " of " + r.instance.value;
    const bool early = r.phase == RolloutPhase::kStarting || r.phase == RolloutPhase::kReady;
    if (!r.is_under_way())
        return step.refuse_operation(
            operation, precondition(which + " is over (" + std::string(to_string(r.phase)) + ")",
                                    "RolloutOver"));
    if (r.paused == wanted)
        return step.answer_operation(operation,
                                     which + (wanted ? " is paused already" : " is not paused"));
    if (!early)
        return step.refuse_operation(
            operation, precondition(which + " is past the point where it could wait (" +
                                        std::string(to_string(r.phase)) + "); undo leads back",
                                    "RolloutTooFar"));
    const std::string words = wanted ? which + " does not hand over until it is resumed"
                                     : which + " hands over as soon as the new one is ready";
    if (!event.dry_run) {
        r.paused = wanted;
        step.act(PersistRollout{r});
        tell(r, false, wanted ? "RolloutPaused" : "RolloutResumed",
             words + (event.reason.empty() ? "" : ": " + event.reason));
    }
    step.answer_operation(operation, words); // what follows is seen by watch()
}

void Step::Rolling::undo(const OperatorRollout& event, Operation operation, Rollout& r) {
    const std::string which = "rollout " + std::to_string(r.number) + " of " + r.instance.value;
    if (r.phase == RolloutPhase::kComplete) {
        OperatorRollout back = event;
        back.spec = r.before;
        return begin(std::move(back), std::move(operation), true);
    }
    if (!r.is_under_way() || r.phase == RolloutPhase::kReverting)
        return step.refuse_operation(
            operation,
            precondition(which + (r.is_under_way() ? " goes back already"
                                                   : " has left nothing to undo (" +
                                                         std::string(to_string(r.phase)) + ")"),
                         "NothingToUndo"));
    const std::string words = which + " goes back to the document before";
    if (!event.dry_run) {
        r.undo = true;
        go_back(r, "undone by an operator" + (event.reason.empty() ? "" : ": " + event.reason));
    }
    step.answer_operation(operation, words);
}

} // namespace berth::node
