// SPDX-License-Identifier: Apache-2.0
// What rollouts must not do, whatever fails: disturb who serves before another can, and leave
// nobody behind who serves.
#include "scheduler/simulate/judge.h"

#include <algorithm>

namespace berth::simulate {

using node::InstanceState;
using node::RolloutPhase;

namespace {

bool is_early(RolloutPhase phase) {
    return phase == RolloutPhase::kStarting || phase == RolloutPhase::kReady;
}

std::string text_of(const node::Rollout& r) {
    return "rollout " + std::to_string(r.number) + " of " + r.instance.value + " (" +
           std::string(to_string(r.phase)) + (r.reason.empty() ? "" : ", " + r.reason) + ": " +
           r.message + ")";
}

} // namespace

// By the engines' own word.
node::ProcessRef Judge::who_serves(const std::string& service) const {
    for (const auto& [pid, engine] : engines_->all())
        if (engine.service == service && engine.serving > 0)
            return engine.process;
    return {};
}

void Judge::check_rollouts(const std::vector<node::Action>& actions) {
    for (const auto& [name, r] : state().rollouts) {
        const auto before = rollouts_.find(name);
        if (before == rollouts_.end() || before->second.number != r.number)
            continue;
        const bool fails = is_early(before->second.phase) && !is_early(r.phase) &&
                           r.phase != RolloutPhase::kHandingOver && r.reason != "Superseded" &&
                           r.phase != RolloutPhase::kReplacing;
        if (fails)
            check_unharmed(r, before->second.serving, actions);
        if (before->second.phase < RolloutPhase::kComplete && !r.is_under_way())
            check_served(r);
    }
}

// Who served before it began is not asked to end for its failure.
void Judge::check_unharmed(const node::Rollout& r, const node::ProcessRef& serving,
                           const std::vector<node::Action>& actions) {
    for (const node::Action& action : actions) {
        const auto* command = std::get_if<node::SendCommand>(&action);
        if (command == nullptr || command->kind != node::CommandKind::kStop)
            continue;
        const auto found = state().instances.find(command->instance);
        if (found != state().instances.end() && serving && found->second.process == serving &&
            found->second.held_by == node::HeldBy::kNobody &&
            command->instance != r.first) // which had the new document when it took over
            stage_.wrong("rollout-harm", text_of(r) + " ends, and so does " +
                                             command->instance.value +
                                             ", which has served all the time");
    }
}

// Whom the node takes for the one that answers does.
void Judge::check_served(const node::Rollout& r) {
    for (const auto& [name, i] : state().instances) {
        if (i.service != r.instance.value || i.stands_by || !i.session || i.serve_timer ||
            i.state != InstanceState::kRunning)
            continue;
        const Engines::Engine* engine = engines_->of(name);
        if (engine != nullptr && engine->process == i.process && engine->serving == 0 &&
            !engine->ends)
            stage_.wrong("rollout-nobody", text_of(r) + " is over, and " + name.value +
                                               " has not been told to answer");
    }
}

void Judge::remember_rollouts() {
    rollouts_.clear();
    for (const auto& [name, r] : state().rollouts)
        rollouts_[name] = {r.number, r.phase, who_serves(name.value)};
}

// Over; or waiting for an operator, or for somebody who is away or down.
void Judge::check_rollouts_settled() {
    for (const auto& [name, r] : state().rollouts) {
        if (r.phase == RolloutPhase::kComplete && !r.adopted)
            stage_.wrong("rollout-not-kept", text_of(r) + " is not kept by the documents");
        if (!r.is_under_way() || (r.phase == RolloutPhase::kReady && r.paused))
            continue;
        const bool excused =
            state().policy.mode != policies::PolicyMode::kEnforce ||
            std::ranges::any_of(state().instances, [&name](const auto& one) {
                const node::Instance& i = one.second;
                const bool is_of = i.name == name || i.spec.standby_of == name.value;
                return is_of && (i.state != InstanceState::kRunning || i.on_hold || !i.session);
            });
        if (!excused)
            stage_.wrong("rollout-stuck", text_of(r) + " goes nowhere, and nobody is away");
    }
}

} // namespace berth::simulate
