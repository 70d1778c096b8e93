// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/rollout_step.h"
#include "scheduler/node/service.h"
#include "scheduler/node/tiers.h"

#include <algorithm>

namespace berth::node {

namespace {

// It is the model's on its device, or the part of one of its ranks.
bool answers(const WeightSet& set, const policies::ModelSpec& model) {
    return std::ranges::any_of(set.keys, [&](const LoadKey& key) {
        return key.device == set.device && is_load_of(model, key);
    });
}

} // namespace

void Step::on(const DocumentsApplied& event) {
    const bool first = !s_.ready;
    unpin_what_is_named_no_more(event.documents);
    s_.documents = event.documents;
    Rolling{*this}.take_up(s_.documents);
    const policies::MemorySpec before = s_.policy.memory;
    const Nanoseconds idle_before = s_.policy.resume.online_idle;
    s_.policy = event.documents.effective_policy();
    if (!first)
        move_returns(idle_before);
    s_.windows.clear();
    for (const policies::Trigger& trigger : s_.policy.triggers)
        if (trigger.on == policies::TriggerKind::kSchedule)
            if (auto cron = policies::parse_cron(trigger.cron))
                s_.windows[trigger.class_name].push_back(*cron);
    if (!(before == s_.policy.memory)) // what was no use to try may be now
        for (auto& [key, set] : s_.weights) {
            set.copied.clear();
            set.copy_after = now_;
            set.copies_refused = 0;
        }
    s_.ready = true;
    for (const policies::InstanceSpec& spec : s_.documents.instances)
        follow_document(spec);
    std::vector<InstanceName> gone;
    for (const auto& [name, i] : s_.instances)
        if (s_.documents.find_instance(name.value) == nullptr)
            gone.push_back(name);
    for (const InstanceName& name : gone)
        remove(*find(name));
    for (auto& [key, set] : s_.weights) {
        if (is_tier(set.device))
            continue;
        for (const policies::ModelSpec& model : s_.documents.models) {
            if (!answers(set, model))
                continue;
            const bool named = set.models.insert(ModelName(model.name)).second;
            if (named || (model.pin && !set.pinned)) {
                set.pinned = set.pinned || model.pin;
                act(PersistWeights{set});
            }
        }
    }
    act(TellRules{});
    if (first)
        finish_recovery();
}

// A pin that a Model asked for ends with it; one of a Model that stays is kept.
void Step::unpin_what_is_named_no_more(const policies::Documents& next) {
    for (auto& [key, set] : s_.weights) {
        const auto pins = [&set](const policies::ModelSpec& model) {
            return model.pin && answers(set, model);
        };
        if (!set.pinned || !std::ranges::any_of(s_.documents.models, pins) ||
            std::ranges::any_of(next.models, pins))
            continue;
        set.pinned = false;
        act(PersistWeights{set});
    }
}

// Those who were parked and wait until online has been idle for long enough: by the new measure.
void Step::move_returns(Nanoseconds idle_before) {
    const Nanoseconds idle = s_.policy.resume.online_idle;
    for (auto& [name, i] : s_.instances) {
        if (i.state != InstanceState::kSuspended || i.held_by != HeldBy::kPlanner ||
            i.restart_at <= now_ || i.restart_at != i.since + idle_before)
            continue;
        i.restart_at = std::max(now_, i.since + idle);
        arm(i.aside_timer, Timer{Timer::Kind::kBackOff, i.name, {}}, i.restart_at);
    }
}

void Step::follow_document(const policies::InstanceSpec& spec) {
    const InstanceName name(spec.name);
    if (!s_.instances.contains(name)) {
        Instance fresh;
        fresh.name = name;
        fresh.order = next_id();
        fresh.since = fresh.restart_at = fresh.waiting_since = now_;
        fresh.spec = spec;
        fresh.stands_by = is_surge(name); // never the one that answers by mere order
        s_.instances.emplace(name, std::move(fresh));
        Instance& i = *find(name);
        dirty(i);
        tell(i, false, "Pending", "new");
    }
    apply_spec(*find(name), spec);
}

void Step::apply_spec(Instance& i, const policies::InstanceSpec& spec) {
    const policies::PriorityClass* of_class = s_.policy.find_class(spec.class_name);
    i.priority = of_class != nullptr ? of_class->value : 0;
    i.remove_wanted = false;
    const bool changed = !(i.spec == spec);
    i.spec = spec;
    const std::string digest = policies::process_digest(spec, s_.documents.find_model(spec.model));
    if (!i.process_alive)
        i.service = service_of(spec);
    if (i.process_alive) {
        i.restart_wanted = (!i.process_digest.empty() && i.process_digest != digest) ||
                           i.service != service_of(spec);
        if (!i.restart_wanted && i.reason == "RolloutWaits")
            enter(i, i.state, i.substate);
        if (i.restart_wanted || changed)
            dirty(i);
        return;
    }
    if (i.process_digest == digest && !changed)
        return;
    dirty(i);
    const bool was_tried = !i.process_digest.empty() && i.process_digest != digest;
    if (was_tried && (i.state == InstanceState::kFailed || i.state == InstanceState::kSucceeded)) {
        i.failures.clear();
        i.desired = Desired::kRunning;
        i.held_by = HeldBy::kNobody;
        i.restart_at = i.waiting_since = now_;
        i.process_digest.clear();
        enter(i, InstanceState::kPending, "", "", "its document has changed");
    }
    if (i.state != InstanceState::kLoading)
        return;
    i.devices.clear(); // schedule() finds its place, and its load, anew
    enter(i, InstanceState::kPending, "", "", "its document has changed");
}

void Step::remove(Instance& i) {
    i.remove_wanted = true;
    i.desired = i.state == InstanceState::kPreempting ? i.desired : Desired::kStopped;
    dirty(i);
    if (i.process_alive)
        return; // schedule() stops it as soon as its state allows
    if (i.operation)
        finish_operation(*i.operation,
                         Error{ErrorCode::kNotFound, i.name.value + " was removed", "Removed", 0},
                         "removed");
    cancel_timers(i);
    tell(i, false, "Removed", "no longer in the documents");
    dirty_.erase(i.name);
    const InstanceName name = i.name;
    act(ForgetInstance{name});
    s_.instances.erase(name);
}

} // namespace berth::node
