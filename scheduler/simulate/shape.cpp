// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/shape.h"

#include "policies/yaml.h"

#include <algorithm>

namespace berth::simulate {

namespace {

constexpr uint64_t kMi = 1ULL << 20;
constexpr uint64_t kGi = 1ULL << 30;

using policies::PriorityClass;
using policies::Trigger;
using policies::TriggerKind;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

std::vector<PriorityClass> draw_classes(Dice& dice) {
    std::vector<PriorityClass> classes;
    auto add = [&classes](const char* name, int64_t value, bool preempts, bool preemptible) {
        PriorityClass one;
        one.name = name;
        one.value = value;
        one.preempts_lower = preempts;
        one.preemptible = preemptible;
        classes.push_back(one);
    };
    add("online", 1000, true, false);
    add("middle", 500, dice.one_in(2), true);
    add("near", 104, true, true); // within the usual minPriorityDelta of batch
    add("batch", 100, false, true);
    classes.back().global_default = true;
    return classes;
}

std::vector<Trigger> draw_triggers(Dice& dice) {
    std::vector<Trigger> triggers;
    Trigger one;
    one.class_name = "online";
    if (dice.one_in(2))
        triggers.push_back(one);
    if (dice.one_in(3)) {
        one.on = TriggerKind::kQueueDepth;
        one.above = dice.between(1, 4);
        one.for_time = milliseconds(50);
        triggers.push_back(one);
    }
    if (dice.one_in(3)) {
        one = Trigger{};
        one.class_name = "online";
        one.on = TriggerKind::kSloBurn;
        one.metric = "ttft";
        one.target = milliseconds(200);
        triggers.push_back(one);
    }
    if (dice.one_in(10)) {
        one = Trigger{};
        one.class_name = "batch";
        one.on = TriggerKind::kSchedule;
        one.cron = "*/20 * * * *";
        one.cron = dice.one_in(2) ? "0-39 * * * *" : "* 0-6,22-23 * * *";
        triggers.push_back(one);
    }
    return triggers;
}

policies::InstanceSpec draw_instance(Dice dice, const Shape& shape, size_t number) {
    policies::InstanceSpec spec;
    spec.name = "i" + std::to_string(number);
    const uint64_t kind = dice.below(10);
    spec.class_name = kind < 4 ? "online" : kind < 8 ? "batch" : kind == 8 ? "middle" : "near";
    spec.engine.command = {"engine"};
    spec.restart = static_cast<policies::RestartPolicy>(dice.one_in(5) ? dice.below(3) : 1);
    spec.engine.start_deadline = seconds(dice.between(5, 60));
    spec.memory_request_bytes = dice.below(5) * 128 * kMi * shape.scale;
    spec.memory_limit_bytes = std::max<uint64_t>(spec.memory_request_bytes,
                                                 dice.between(1, 16) * 128 * kMi * shape.scale);
    if (dice.one_in(8)) { // a plain program
        spec.engine.driver = policies::DriverKind::kProcess;
        // One process has one figure of overhead: its devices are of one kind.
        if (shape.devices.size() > 1 && dice.one_in(2) &&
            shape.devices.front().kind == shape.devices.back().kind)
            spec.device_count =
                static_cast<uint32_t>(dice.between(2, std::min<size_t>(4, shape.devices.size())));
        spec.class_name = dice.one_in(3) ? "middle" : "batch";
    } else {
        spec.model = "m" + std::to_string(dice.below(shape.documents.models.size()));
        if (spec.class_name == "online")
            spec.restart = policies::RestartPolicy::kAlways;
    }
    if (const policies::ModelSpec* model = shape.documents.find_model(spec.model)) {
        spec.ranks = model->tensor_parallel;
        const bool share = dice.of("ranks").one_in(3) || spec.ranks > shape.devices.size();
        spec.device_count = share ? 1 : spec.ranks;
    }
    if (dice.one_in(6) && spec.device_count == 1)
        spec.devices = {shape.devices[dice.below(shape.devices.size())].id.value};
    if (spec.class_name == "online" && dice.one_in(3)) {
        policies::SloSpec slo;
        slo.ttft = milliseconds(200);
        spec.slo = slo;
    }
    if (!shape.documents.policy->tenants.empty() && dice.one_in(3))
        spec.tenant = shape.documents.policy->tenants.front().name;
    return spec;
}

void draw_devices(Dice dice, Shape& shape, const ShapeLimits& limits) {
    const bool large = dice.one_in(40);
    const bool cuda = dice.one_in(2);
    shape.scale = cuda ? 8 : 1;
    const size_t drawn = large ? dice.between(4, 16) : dice.one_in(3) ? 2 : 1;
    const size_t least = std::max<size_t>(limits.devices_min, shape.rolls ? 2 : 1);
    const size_t count = std::clamp(drawn, least, std::max(least, limits.devices_max));
    const uint64_t bytes = (cuda ? dice.between(10, 40) : dice.between(2, 8)) * kGi;
    for (size_t n = 0; n < count; ++n) {
        Shape::Device device;
        device.kind = cuda ? DeviceKind::kCuda : DeviceKind::kHost;
        device.id = node::DeviceId((cuda ? "GPU-" : "host-") + std::to_string(n));
        device.bytes = bytes + (dice.one_in(4) ? shape.scale * kGi : 0);
        shape.devices.push_back(device);
    }
    if (cuda && count == 2 && dice.one_in(4) && !shape.rolls) { // a mixed node
        shape.devices.back().kind = DeviceKind::kHost;
        shape.devices.back().id = node::DeviceId("host-0");
    }
}

} // namespace

policies::PolicySpec draw_policy(Dice dice, const Shape& shape) {
    policies::PolicySpec policy = policies::default_policy();
    const uint64_t mode = dice.below(20);
    policy.mode = mode == 0   ? policies::PolicyMode::kObserve
                  : mode == 1 ? policies::PolicyMode::kOff
                              : policies::PolicyMode::kEnforce;
    policy.classes = draw_classes(dice);
    policy.triggers = draw_triggers(dice);
    policies::PreemptionSpec& preemption = policy.preemption;
    preemption.modes.clear();
    for (policies::Rung rung :
         {policies::Rung::kPause, policies::Rung::kShrink, policies::Rung::kOffload})
        if (!dice.one_in(4))
            preemption.modes.push_back(rung);
    if (preemption.modes.empty())
        preemption.modes.push_back(policies::Rung::kOffload);
    preemption.fallback_evict = !dice.one_in(5);
    preemption.reclaim_deadline = milliseconds(dice.between(1, 8) * 250);
    preemption.exempt_time = seconds(dice.below(3) * 5);
    preemption.min_priority_delta =
        dice.one_in(4) ? static_cast<int64_t>(dice.between(1, 600)) : 10;
    preemption.disruption_budget.preemptions_max = dice.between(1, 6);
    preemption.disruption_budget.window = minutes(dice.between(1, 10));
    std::rotate(preemption.victim_order.begin(),
                preemption.victim_order.begin() + static_cast<long>(dice.below(3)),
                preemption.victim_order.end());
    policy.resume.online_idle = milliseconds(dice.between(1, 10) * 500);
    policy.resume.on_failure =
        dice.one_in(3) ? policies::OnResumeFailure::kEvict : policies::OnResumeFailure::kHold;
    policy.resume.verify_timeout = seconds(dice.between(5, 30));
    if (dice.one_in(2))
        policy.resume.memory_margin_bytes = dice.below(3) * 128 * kMi;
    if (dice.one_in(2))
        policy.memory.device_reserve_bytes = dice.below(3) * 128 * kMi * shape.scale;
    policy.memory.host_pinned_limit_bytes = dice.between(1, 16) * kGi;
    if (dice.one_in(3))
        policy.memory.host_tier_bytes = dice.between(1, 6) * kGi * shape.scale / 2;
    if (dice.one_in(4)) {
        policy.memory.image_dir = "/images";
        policy.memory.image_limit_bytes = dice.between(1, 6) * kGi * shape.scale / 2;
    }
    policy.starvation.suspended_max = minutes(dice.between(1, 30));
    policy.starvation.action = dice.one_in(3) ? policies::StarvationAction::kBoostPriority
                                              : policies::StarvationAction::kAlert;
    policy.placement.strategy =
        dice.one_in(2) ? policies::PlacementStrategy::kPack : policies::PlacementStrategy::kSpread;
    if (shape.documents.policy ? !shape.documents.policy->tenants.empty() : dice.one_in(4)) {
        policies::TenantSpec tenant;
        tenant.name = "search";
        tenant.device_memory_bytes_max = dice.between(4, 16) * 512 * kMi * shape.scale;
        policy.tenants.push_back(tenant);
    }
    return policy;
}

namespace {

// Some answer a socket that outlives them, and the next one may stand by for them.
void pair_up(Dice dice, Shape& shape) {
    auto& all = shape.documents.instances;
    for (size_t n = 0; n < all.size(); ++n) {
        policies::InstanceSpec& one = all[n];
        if (one.engine.driver != policies::DriverKind::kBerth || shape.jobs.contains(one.name) ||
            !(dice.one_in(3) || shape.rolls))
            continue;
        one.engine.listen = "127.0.0.1:" + std::to_string(8000 + n);
        one.engine.step_deadline = seconds(5);
        if (n + 1 == all.size() || dice.one_in(3))
            continue;
        policies::InstanceSpec& standby = all[++n];
        const std::string name = standby.name;
        shape.jobs.erase(name);
        standby = one;
        standby.name = name;
        standby.standby_of = one.name;
        standby.standby_grant =
            dice.one_in(2) ? policies::StandbyGrant::kReserved : policies::StandbyGrant::kTakeOver;
    }
}

// Every second one is of a class that makes the others give way, ends soon and comes again.
void contest(Shape& shape) {
    policies::PolicySpec& policy = *shape.documents.policy;
    policy.mode = policies::PolicyMode::kEnforce;
    policy.tenants.clear();
    policy.preemption.disruption_budget = {1, minutes(10)};
    policy.preemption.exempt_time = seconds(0);
    policy.preemption.min_priority_delta = 10;
    policy.preemption.fallback_evict = true;
    for (PriorityClass& one : policy.classes)
        one.preempts_lower = one.preempts_lower || one.name == "middle";
    shape.jobs.clear();
    bool high = false;
    for (policies::InstanceSpec& spec : shape.documents.instances) {
        high = !high;
        spec.class_name = high ? "middle" : "batch";
        spec.slo.reset();
        spec.tenant.clear();
        spec.devices.clear();
        spec.device_count = 1;
        spec.restart = policies::RestartPolicy::kAlways;
        spec.engine.driver = high ? policies::DriverKind::kProcess : policies::DriverKind::kBerth;
        spec.model = high ? "" : "m0";
        if (!high)
            shape.jobs.insert(spec.name);
        spec.memory_request_bytes = shape.devices.front().bytes / 3;
        spec.memory_limit_bytes = spec.memory_request_bytes;
    }
}

} // namespace

Shape draw_shape(uint64_t seed, const std::set<std::string>& without, ShapeLimits limits) {
    const Dice all(seed);
    Shape shape;
    shape.rolls = !limits.contested && all.of("rolls").one_in(6);
    draw_devices(all.of("devices"), shape, limits);
    shape.documents.policy = draw_policy(all.of("policy"), shape);
    Dice dice = all.of("sizes");
    size_t models = dice.between(1, 3) + (shape.devices.size() > 4 ? 4 : 0);
    models = std::max<size_t>(models, shape.rolls ? 2 : 1);
    for (size_t n = 0; n < models; ++n) {
        policies::ModelSpec model;
        model.name = "m" + std::to_string(n);
        model.path = "/models/m" + std::to_string(n);
        model.pin = dice.one_in(6);
        // Each rank has the figure of overhead of the first: all devices are of one kind.
        if (!limits.contested && shape.devices.front().kind == shape.devices.back().kind &&
            (all.of("ranks", n).one_in(4) || (shape.rolls && n == 1)))
            model.tensor_parallel = 2;
        shape.documents.models.push_back(model);
        Shape::Model& of = shape.models[model.path];
        of.bytes = dice.between(2, 12) * 128 * kMi * shape.scale;
        of.overhead_bytes = dice.between(1, 4) * 32 * kMi * shape.scale;
    }
    size_t instances =
        dice.between(2, 6) + shape.devices.size() * (shape.devices.size() > 2 ? 4 : 0);
    if (dice.one_in(200))
        instances = dice.between(100, 1000);
    instances = std::clamp(instances, limits.instances_min, limits.instances_max);
    shape.drawn = instances;
    for (size_t n = 0; n < instances; ++n) {
        policies::InstanceSpec spec = draw_instance(all.of("instance", n), shape, n);
        if (without.contains(spec.name))
            continue;
        if (shape.rolls && spec.engine.driver == policies::DriverKind::kBerth && n % 3 != 2) {
            spec.class_name = "online";
            spec.restart = policies::RestartPolicy::kAlways;
        }
        if (spec.class_name != "online" && spec.engine.driver == policies::DriverKind::kBerth)
            shape.jobs.insert(spec.name);
        shape.documents.instances.push_back(std::move(spec));
    }
    if (limits.contested)
        contest(shape);
    else
        pair_up(all.of("pairs"), shape);
    return shape;
}

} // namespace berth::simulate
