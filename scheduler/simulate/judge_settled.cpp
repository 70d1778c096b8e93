// SPDX-License-Identifier: Apache-2.0
// What must hold once faults have ceased: nobody is stuck, nobody waits who fits, nothing is lost.
#include "scheduler/simulate/judge.h"

#include "scheduler/node/tiers.h"

#include <algorithm>

namespace berth::simulate {

using node::HeldBy;
using node::InstanceState;

namespace {

constexpr std::chrono::seconds kTryingTime{30};

std::string text_of(const node::Instance& i) {
    return i.name.value + " (" + std::string(to_string(i.state)) +
           (i.reason.empty() ? "" : ", " + i.reason) + (i.message.empty() ? "" : ": " + i.message) +
           ")";
}

bool waits(const node::Instance& i) {
    return i.state == InstanceState::kPending ||
           ((i.state == InstanceState::kSuspended || i.state == InstanceState::kEvicted) &&
            i.held_by == HeldBy::kPlanner);
}

} // namespace

// The records and the keeper lost nothing that was there before.
void Judge::after_start() {
    for (const auto& [place, set] : loaders_->kept()) {
        const node::WeightSet* found = node::find_set(state(), place.second, place.first);
        if (found == nullptr)
            stage_.wrong("weights-lost", "the keeper has " + place.second.value + " on " +
                                             place.first.value + ", the new berthd has not");
        else if (found->bytes != set.bytes || found->fingerprint != set.fingerprint)
            stage_.wrong("weights-changed", place.second.value + " came back as another");
    }
    for (const auto& [pid, engine] : engines_->all()) {
        if (stage_.records_lost)
            break;
        const auto found = state().instances.find(engine.instance);
        if (found == state().instances.end() || !found->second.process_alive)
            stage_.wrong(
                "process-lost",
                engine.key + " lives, and the new berthd says " +
                    (found == state().instances.end() ? "nothing of it" : text_of(found->second)));
        else if (found->second.process && !(found->second.process == engine.process))
            stage_.wrong("process-lost", engine.key + " is taken for another process");
    }
    if (stage_.records_lost)
        return;
    for (const auto& [name, held] : holds_)
        if (const auto found = state().instances.find(name);
            found != state().instances.end() && found->second.on_hold != held)
            stage_.wrong("forgotten", "the hold of " + name.value + " was answered, and is " +
                                          (held ? "forgotten" : "back"));
    for (const auto& [id, cordoned] : cordons_)
        if (is_cordoned(id) != cordoned)
            stage_.wrong("forgotten", "the cordon of " + id.value + " was answered, and is " +
                                          (cordoned ? "forgotten" : "back"));
}

void Judge::when_settled() {
    if (!daemon_->up())
        return stage_.wrong("stuck", "berthd is not up");
    for (const auto& [id, operation] : state().operations)
        stage_.wrong("operation-open", "operation " + id.value + " (" +
                                           std::string(to_string(operation.kind)) + " " +
                                           operation.object + ") has not ended");
    for (const auto& [id, load] : state().loads)
        if (!load.is_private || load.state != node::Load::State::kLoading) // an engine's may stay
            stage_.wrong("stuck", "a load of " + load.key.path + " onto " + load.key.device.value +
                                      " has not ended (" + load.phase + ")");
    check_rollouts_settled();
    for (const auto& [key, set] : state().weights)
        if (set.dropping)
            stage_.wrong("stuck", "weight set " + set.id.value + " is being dropped on " +
                                      set.device.value + " for ever");
    for (const auto& [name, i] : state().instances) {
        switch (i.state) {
        case InstanceState::kPreempting: // where no rung may follow, a silent one is tried again
            if (stage_.now - i.since < kTryingTime)
                break;
            [[fallthrough]];
        case InstanceState::kLoading:
        case InstanceState::kStarting:
        case InstanceState::kResuming:
        case InstanceState::kUnkillable:
            stage_.wrong("stuck", text_of(i) + " stays so");
            break;
        case InstanceState::kFailed:
            if (i.reason.empty())
                stage_.wrong("no-reason", text_of(i) + " gives no reason");
            break;
        case InstanceState::kSucceeded:
            if (!i.spec.engine.listen.empty() && i.spec.restart != policies::RestartPolicy::kNever)
                stage_.wrong("service-over", text_of(i) + " answers a socket, and was not told to "
                                                          "end for good");
            break;
        case InstanceState::kPaused:
            if (i.held_by != HeldBy::kOperator && !is_excused(i))
                stage_.wrong("stuck", text_of(i) + " is paused, and nobody wants that");
            break;
        default:
            break;
        }
        if (waits(i))
            check_waiting(i);
        check_answered(i);
    }
}

// Whoever could answer a socket does, or the other of its pair.
void Judge::check_answered(const node::Instance& i) {
    if (i.spec.engine.listen.empty() || i.state != InstanceState::kRunning || !i.session ||
        state().policy.mode == policies::PolicyMode::kOff)
        return;
    const std::string& service = i.spec.standby_of.empty() ? i.spec.name : i.spec.standby_of;
    const bool answered = std::ranges::any_of(engines_->all(), [&](const auto& one) {
        const Engines::Engine& engine = one.second;
        const auto its = state().instances.find(engine.instance);
        const bool frozen = engine.silent && its != state().instances.end() &&
                            its->second.state == InstanceState::kRunning;
        return engine.service == service && engine.serving > 0 && !frozen;
    });
    if (!answered)
        stage_.wrong("nobody-answers",
                     text_of(i) + " runs, and nobody answers the socket of " + service);
}

bool Judge::is_excused(const node::Instance& i) const {
    if (i.on_hold || i.remove_wanted || state().policy.mode != policies::PolicyMode::kEnforce)
        return true;
    if (!i.spec.tenant.empty()) // its tenant may have no more room
        return true;
    for (const policies::Trigger& trigger : state().policy.triggers)
        if (trigger.on == policies::TriggerKind::kSchedule &&
            trigger.class_name == i.spec.class_name)
            return true; // its hours may be over
    // An engine that is not connected cannot be told to come back.
    return i.state == InstanceState::kSuspended && !i.session;
}

uint64_t Judge::need(const node::Instance& i, const node::DeviceId& device) const {
    const auto found = state().devices.find(device);
    const bool cuda = found != state().devices.end() && found->second.kind == DeviceKind::kCuda;
    const uint64_t margin =
        state().policy.resume.memory_margin_bytes.value_or(cuda ? node::kCudaMarginBytes : 0);
    const uint64_t each = i.spec.ranks_each();
    const uint64_t grant = node::grant_bytes_min(i) * each;
    if (i.state == InstanceState::kSuspended)
        return grant + margin;
    const uint64_t process = grant + node::process_overhead_bytes(state(), device) * each + margin;
    const policies::ModelSpec* model = state().documents.find_model(i.spec.model);
    const auto shape = model == nullptr ? shape_.models.end() : shape_.models.find(model->path);
    if (shape == shape_.models.end() ||
        (i.spec.ranks == 1 && node::resident(state(), node::load_key(*model, device)) != nullptr))
        return process;
    return shape->second.bytes * each / i.spec.ranks +
           std::max(process, shape->second.overhead_bytes * each);
}

uint64_t Judge::others_need(const node::Instance& i, const node::DeviceId& device) const {
    uint64_t bytes = 0;
    for (const auto& [name, other] : state().instances)
        if (name != i.name && waits(other) &&
            (other.state != InstanceState::kSuspended || other.is_on(device)))
            bytes += need(other, device);
    return bytes;
}

// What those give whom the policy lets give way to it.
uint64_t Judge::victims_give(const node::Instance& i, const node::DeviceId& device) const {
    const policies::PreemptionSpec& rules = state().policy.preemption;
    const policies::PriorityClass* of_class = state().policy.find_class(i.spec.class_name);
    if (of_class == nullptr || !of_class->preempts_lower || !rules.fallback_evict)
        return 0;
    uint64_t bytes = 0;
    for (const auto& [name, other] : state().instances) {
        if (!other.is_on(device) || other.state != InstanceState::kRunning || !other.session ||
            !node::preemptible(state(), other) ||
            i.priority - other.priority < rules.min_priority_delta || other.devices.size() > 1)
            continue;
        const auto spent = std::count_if(
            other.disruptions.begin(), other.disruptions.end(),
            [&](node::TimePoint at) { return stage_.now - at <= rules.disruption_budget.window; });
        const bool exempt = stage_.now - other.since <= rules.exempt_time;
        if (!exempt && static_cast<uint64_t>(spent) < rules.disruption_budget.preemptions_max)
            bytes += other.grant_bytes + other.overhead_bytes;
    }
    return bytes;
}

// Nobody waits for ever who fits; and who waits is told why.
void Judge::check_waiting(const node::Instance& i) {
    if (i.reason.empty() && i.message.empty())
        stage_.wrong("no-reason", text_of(i) + " waits and does not say for what");
    if (is_excused(i) || i.spec.grants() > 1)
        return;
    for (const auto& [id, device] : state().devices) {
        const bool allowed =
            i.state == InstanceState::kSuspended
                ? i.is_on(id)
                : i.spec.devices.empty() || std::find(i.spec.devices.begin(), i.spec.devices.end(),
                                                      id.value) != i.spec.devices.end();
        if (!allowed || device.cordoned)
            continue;
        const node::DeviceUsage now = node::usage(state(), id);
        const uint64_t wanted = need(i, id) + others_need(i, id);
        if (wanted <= now.free_bytes)
            stage_.wrong("waits", text_of(i) + " waits; with all others that wait " +
                                      format_bytes(wanted) + " are needed on " + id.value + ", " +
                                      format_bytes(now.free_bytes) + " are free");
        else if (wanted <= now.free_bytes + victims_give(i, id))
            stage_.wrong("waits-for-less", text_of(i) + " waits for " + format_bytes(wanted) +
                                               " on " + id.value + "; " +
                                               format_bytes(now.free_bytes) + " are free and " +
                                               format_bytes(victims_give(i, id)) +
                                               " are with those who should give way");
    }
}

void Judge::when_empty() {
    for (const auto& [name, i] : state().instances)
        stage_.wrong("not-removed", text_of(i) + " is in no document and stays");
    for (const auto& [id, device] : state().devices) {
        if (const uint64_t bytes = node::usage(state(), id).used_bytes(); bytes > 0)
            stage_.wrong("bytes-lost", format_bytes(bytes) + " stay counted on " + id.value);
        if (const uint64_t bytes = stage_.account.used(id); bytes > 0)
            stage_.wrong("bytes-lost", "on " + id.value + " stay " + stage_.account.words(id));
    }
}

} // namespace berth::simulate
