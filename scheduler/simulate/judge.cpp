// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/judge.h"

#include "scheduler/node/tiers.h"

#include <algorithm>

namespace berth::simulate {

using node::InstanceState;

namespace {

constexpr uint64_t kOffloadedMost = 66ULL << 20; // what the driver still counts

} // namespace

Judge::Judge(Stage& stage, const Shape& shape) : stage_(stage), shape_(shape) {}

void Judge::use(const Daemon& daemon, const Engines& engines, const Loaders& loaders) {
    daemon_ = &daemon;
    engines_ = &engines;
    loaders_ = &loaders;
}

void Judge::after_event(const node::Event& event, const std::vector<node::Action>& actions) {
    // A decision that died with berthd disturbed nobody.
    if (const auto* recovered = std::get_if<node::InstanceRecovered>(&event))
        seen_[recovered->name].disruptions = recovered->disruptions;
    for (const std::string& one : node::check_invariants(state()))
        stage_.wrong("invariant", one);
    if (state().ready && !state().stopping) {
        check_memory();
        check_promises(event, actions);
        check_disruptions(actions);
        check_jobs();
        check_rollouts(actions);
    }
    remember();
}

// The ledger counts at least what is really there.
void Judge::check_memory() {
    for (const auto& [id, device] : state().devices) {
        const uint64_t truly = stage_.account.used(id);
        const uint64_t counted = node::usage(state(), id).used_bytes();
        if (truly > counted)
            stage_.wrong("not-counted", "on " + id.value + " the ledger counts " +
                                            format_bytes(counted) + ", really there are " +
                                            format_bytes(truly) + ": " + stage_.account.words(id));
    }
}

void Judge::check_promises(const node::Event& event, const std::vector<node::Action>& actions) {
    // What is asked and not yet answered may be or not be after a crash.
    if (const auto* hold = std::get_if<node::OperatorHold>(&event)) {
        holds_.erase(hold->instance);
        ++changes_["instance/" + hold->instance.value];
    }
    for (const node::Action& action : actions)
        if (const auto* device = std::get_if<node::PersistDevice>(&action)) {
            cordons_.erase(device->device.id);
            ++changes_["device/" + device->device.id.value];
        } else if (const auto* forget = std::get_if<node::ForgetInstance>(&action)) {
            holds_.erase(forget->instance);
            ++changes_["instance/" + forget->instance.value];
        } else if (const auto* done = std::get_if<node::OperationDone>(&action)) {
            decided_[done->operation.id] = changes_[done->operation.object];
        }
    for (const node::Action& action : actions) {
        if (const auto* start = std::get_if<node::StartProcess>(&action))
            check_start(*start);
        else if (const auto* command = std::get_if<node::SendCommand>(&action))
            check_command(*command);
        else if (const auto* forget = std::get_if<node::ForgetRequests>(&action))
            check_forgotten(*forget);
        else if (const auto* note = std::get_if<node::NoteRequests>(&action))
            check_forgotten({note->instance, /*noted=*/true, /*drop=*/false});
        else if (const auto* decision = std::get_if<node::Decision>(&action))
            check_decision(*decision);
        else if (const auto* load = std::get_if<node::LoadFinished>(&action);
                 load != nullptr && load->error && load->error->message.empty())
            stage_.wrong("no-reason", "a load of " + load->key.path + " is refused without a word");
    }
}

bool Judge::is_cordoned(const node::DeviceId& device) const {
    const auto found = state().devices.find(device);
    return found != state().devices.end() && found->second.cordoned;
}

void Judge::check_start(const node::StartProcess& start) {
    const std::string who = start.instance.value;
    const auto found = state().instances.find(start.instance);
    if (found == state().instances.end())
        return stage_.wrong("start-unknown", who + " is started and is not known");
    const node::Instance& i = found->second;
    const auto places = std::ranges::distance(i.places());
    if (start.devices.size() != i.spec.grants() || start.ranks != i.spec.ranks ||
        places != i.spec.device_count)
        stage_.wrong("all-or-none", who + " is started as " + std::to_string(start.ranks) +
                                        " ranks on " + std::to_string(places) +
                                        " devices, asked for are " + std::to_string(i.spec.ranks) +
                                        " on " + std::to_string(i.spec.device_count));
    for (const node::DeviceId& device : start.devices) {
        if (is_cordoned(device))
            stage_.wrong("cordon", who + " is started on " + device.value + ", which is cordoned");
        const node::DeviceUsage now = node::usage(state(), device);
        if (now.used_bytes() + now.reserve_bytes > now.total_bytes)
            stage_.wrong("reserve", who + " is started into the reserve of " + device.value);
    }
    check_ranks(start, i);
    if (i.on_hold)
        stage_.wrong("hold", who + " is started while it is on hold");
    if (i.grant_bytes < start.grant_bytes)
        stage_.wrong("not-reserved", who + " is started with " + format_bytes(start.grant_bytes) +
                                         ", reserved are " + format_bytes(i.grant_bytes));
}

// Whoever answers writes into what is wiped; whoever has a journal may.
void Judge::check_forgotten(const node::ForgetRequests& forget) {
    const auto found = state().instances.find(forget.instance);
    if (found == state().instances.end())
        return stage_.wrong("forget-unknown", forget.instance.value + " is not known");
    const std::string& service = found->second.service;
    for (const auto& [name, i] : state().instances)
        if (forget.drop && i.service == service && i.process_alive && i.journals)
            stage_.wrong("dropped-early", "the journal of " + service + " is dropped while " +
                                              name.value + " has it");
    if (const node::ProcessRef serving = who_serves(service); serving && !forget.drop)
        stage_.wrong("forgotten-early", "requests of " + found->second.service +
                                            " are forgotten while process " +
                                            std::to_string(serving.pid) + " answers");
}

// Each rank with its part of one and the same Model.
void Judge::check_ranks(const node::StartProcess& start, const node::Instance& i) {
    const std::string who = start.instance.value;
    if (i.spec.engine.driver == policies::DriverKind::kBerth && !start.model.name.empty() &&
        start.model.tensor_parallel != start.ranks)
        stage_.wrong("mixed-ranks", who + " is started as " + std::to_string(start.ranks) +
                                        " ranks of a Model of " +
                                        std::to_string(start.model.tensor_parallel));
    for (uint32_t rank = 0; start.ranks > 1 && rank < i.weights.size(); ++rank) {
        const node::DeviceId& device = start.devices.at(rank);
        const node::WeightSet* set = node::find_set(state(), i.weights[rank], device);
        if (set == nullptr || !set->keys.contains(node::load_key(start.model, device, rank)))
            stage_.wrong("mixed-ranks", "rank " + std::to_string(rank) + " of " + who +
                                            " is started with " + i.weights[rank].value + " on " +
                                            device.value +
                                            ", which is no part of its Model for it");
    }
}

void Judge::check_command(const node::SendCommand& command) {
    if (command.kind != node::CommandKind::kRestore && command.kind != node::CommandKind::kGrow)
        return;
    const std::string who =
        command.instance.value + " " + std::string(to_string(command.kind)) + "s";
    const auto found = state().instances.find(command.instance);
    if (found == state().instances.end())
        return;
    const node::Instance& i = found->second;
    if (i.grant_bytes < command.grant_bytes)
        stage_.wrong("not-reserved", who + " into " + format_bytes(command.grant_bytes) +
                                         ", reserved are " + format_bytes(i.grant_bytes));
    const auto before = seen_.find(command.instance);
    const bool was_under_way =
        before != seen_.end() && before->second.state == InstanceState::kResuming;
    const auto asked =
        i.operation ? state().operations.find(*i.operation) : state().operations.end();
    const bool by_operator =
        asked != state().operations.end() && asked->second.kind == node::OperationKind::kResume;
    if (command.kind == node::CommandKind::kGrow || was_under_way || by_operator)
        return;
    if (i.on_hold)
        stage_.wrong("hold", who + " while it is on hold");
    for (const node::DeviceId& device : i.devices)
        if (is_cordoned(device))
            stage_.wrong("cordon", who + " on " + device.value + ", which is cordoned");
}

void Judge::answered(const node::Operation& done) {
    const std::string who = "operation " + done.id.value + " (" +
                            std::string(to_string(done.kind)) + " " + done.object + ")";
    if (!done.dry_run && !done_.insert(done.id).second && asked_.contains(done.id) &&
        !stage_.records_lost)
        stage_.wrong("done-twice", who + " ends twice");
    if (done.state == node::OperationState::kFailed) {
        if (!done.error || done.error->message.empty() || done.error->reason.empty())
            stage_.wrong("no-reason", who + " fails without a reason: " +
                                          (done.error ? done.error->message : ""));
        return;
    }
    if (done.message.empty())
        stage_.wrong("no-reason", who + " succeeds without a word");
    if (done.dry_run)
        return;
    // Its answer may have waited for the disk, and something else may have been decided since.
    if (decided_[done.id] != changes_[done.object])
        return check_facts(done);
    if (done.kind == node::OperationKind::kHold || done.kind == node::OperationKind::kRelease)
        holds_[done.instance] = done.kind == node::OperationKind::kHold;
    if (done.kind == node::OperationKind::kCordon || done.kind == node::OperationKind::kUncordon)
        cordons_[node::DeviceId(done.object.substr(7))] = done.kind == node::OperationKind::kCordon;
    check_facts(done);
}

// What callers are told holds at that moment, by the facts.
void Judge::check_facts(const node::Operation& done) {
    const std::string who = "operation " + done.id.value + " (" +
                            std::string(to_string(done.kind)) + " " + done.object + ")";
    const Engines::Engine* engine = engines_->of(done.instance);
    const auto found = state().instances.find(done.instance);
    if (found == state().instances.end())
        return;
    if (done.kind == node::OperationKind::kPreempt && done.reached == policies::Rung::kEvict &&
        engine != nullptr && !found->second.process_alive)
        stage_.wrong("said-before-done", who + " has succeeded, and " + engine->key + " lives");
    if (done.kind == node::OperationKind::kPreempt && done.reached == policies::Rung::kOffload &&
        engine != nullptr && found->second.state == InstanceState::kSuspended)
        for (const node::DeviceId& device : engine->devices)
            if (stage_.account.get(device, "grant of " + engine->key) >
                kOffloadedMost *
                    static_cast<uint64_t>(std::ranges::count(engine->devices, device))) // of ranks
                stage_.wrong(
                    "said-before-done",
                    who + " has succeeded, and " + engine->key + " still has " +
                        format_bytes(stage_.account.get(device, "grant of " + engine->key)) +
                        " on " + device.value);
    if (done.kind == node::OperationKind::kResume && engine != nullptr &&
        found->second.state == InstanceState::kRunning && engine->alive &&
        engine->says != node::EngineState::kReady && engine->says != node::EngineState::kSucceeded)
        stage_.wrong("said-before-done",
                     who + " has succeeded, and " + engine->key + " is not ready");
}

// Nobody is made to give way to somebody who is not enough more important.
void Judge::check_decision(const node::Decision& decision) {
    if (decision.outcome.empty())
        stage_.wrong("no-reason", "a decision about " + decision.object + " says nothing");
    for (const node::Decision::Candidate& one : decision.candidates)
        if (one.why.empty())
            stage_.wrong("no-reason",
                         "a decision about " + decision.object + " says nothing of " + one.name);
    if (decision.kind != "Preempt" || !decision.carried_out)
        return;
    int64_t mine = 0;
    if (decision.object.starts_with("instance/")) {
        const auto found = state().instances.find(node::InstanceName(decision.object.substr(9)));
        if (found == state().instances.end())
            return;
        mine = found->second.priority;
        // A starving instance's wait may have raised it, as the policy says.
        if (found->second.starving &&
            state().policy.starvation.action == policies::StarvationAction::kBoostPriority)
            return;
    } else {
        return; // a load goes by the most important of those who wait for it
    }
    for (const node::Decision::Candidate& one : decision.candidates) {
        if (!one.taken || !one.name.starts_with("instance/"))
            continue;
        const auto victim = state().instances.find(node::InstanceName(one.name.substr(9)));
        if (victim == state().instances.end())
            continue;
        if (mine - victim->second.priority < state().policy.preemption.min_priority_delta)
            stage_.wrong("victim",
                         one.name + " of priority " + std::to_string(victim->second.priority) +
                             " gives way to " + decision.object + " of " + std::to_string(mine) +
                             ", minPriorityDelta is " +
                             std::to_string(state().policy.preemption.min_priority_delta));
        if (!node::preemptible(state(), victim->second))
            stage_.wrong("victim", one.name + " gives way and may not be preempted");
    }
}

// Whether no timer that protects a victim may delay it.
bool Judge::is_urgent(const std::string& object) const {
    if (!object.starts_with("instance/"))
        return true; // a load, for whoever waits for it
    const auto found = state().instances.find(node::InstanceName(object.substr(9)));
    if (found == state().instances.end())
        return true;
    const node::Instance& i = found->second;
    const policies::PriorityClass* of_class = state().policy.find_class(i.spec.class_name);
    return of_class != nullptr && of_class->preempts_lower &&
           (!of_class->preemptible || i.spec.slo || i.burning);
}

// What the planner took of whom, within the budget's window.
void Judge::check_disruptions(const std::vector<node::Action>& actions) {
    for (const node::Action& action : actions) {
        const auto* decision = std::get_if<node::Decision>(&action);
        if (decision == nullptr || decision->kind != "Preempt" || !decision->carried_out)
            continue;
        const policies::DisruptionBudget& budget = state().policy.preemption.disruption_budget;
        for (const node::Decision::Candidate& one : decision->candidates) {
            const auto victim = one.taken && one.name.starts_with("instance/")
                                    ? state().instances.find(node::InstanceName(one.name.substr(9)))
                                    : state().instances.end();
            // What had no process, or no memory to give, was not disturbed.
            if (victim == state().instances.end() ||
                victim->second.state != InstanceState::kPreempting)
                continue;
            std::vector<node::TimePoint>& times = seen_[victim->first].disruptions;
            std::erase_if(times,
                          [&](node::TimePoint at) { return stage_.now - at >= budget.window; });
            if (times.size() >= budget.preemptions_max && !is_urgent(decision->object))
                stage_.wrong("budget", one.name + " gives way for the " +
                                           std::to_string(times.size() + 1) + ". time within " +
                                           format_duration(budget.window) + ", allowed are " +
                                           std::to_string(budget.preemptions_max));
            if (times.empty() || times.back() != stage_.now) // on several devices at once
                times.push_back(stage_.now);
        }
    }
}

void Judge::check_jobs() {
    for (const auto& [name, job] : engines_->jobs()) {
        uint64_t& before = lines_[name];
        if (job.answered < before || job.answered > job.lines)
            stage_.wrong("lines", name.value + " has " + std::to_string(job.answered) + " of " +
                                      std::to_string(job.lines) + " answers, it had " +
                                      std::to_string(before));
        before = job.answered;
        const auto found = state().instances.find(name);
        if (found == state().instances.end())
            continue;
        const bool over = found->second.state == InstanceState::kSucceeded;
        const auto was = seen_.find(name);
        const bool just = was == seen_.end() || was->second.state != InstanceState::kSucceeded;
        if (over && just && job.answered < job.lines)
            stage_.wrong("lines", name.value + " is shown as Succeeded with " +
                                      std::to_string(job.answered) + " of " +
                                      std::to_string(job.lines) + " lines answered");
    }
}

void Judge::remember() {
    if (!daemon_->up())
        return;
    for (const auto& [name, i] : state().instances)
        seen_[name].state = i.state;
    remember_rollouts();
}

} // namespace berth::simulate
