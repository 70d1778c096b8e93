// SPDX-License-Identifier: Apache-2.0
#include "policies/cron.h"
#include "policies/fields.h"

#include <algorithm>

namespace berth::policies {

namespace {

// As Kubernetes bounds them; differences of two fit well.
constexpr Range kPriorities{-1'000'000'000, 1'000'000'000};
constexpr Range kPriorityDeltas{1, 2'000'000'000};
constexpr Range kPreemptions{0, 1'000'000};

std::vector<std::string> class_names(const PolicySpec& policy) {
    std::vector<std::string> names;
    for (const PriorityClass& one : policy.classes)
        names.push_back(one.name);
    return names;
}

std::string read_class_name(Fields& fields, const PolicySpec& policy) {
    const std::string name = fields.text("class");
    if (policy.find_class(name) == nullptr)
        fields.refuse("class",
                      "no priority class '" + name + "'" + suggestion(name, class_names(policy)));
    return name;
}

void read_class(Fields& fields, PolicySpec& policy) {
    PriorityClass one;
    one.origin = fields.origin();
    one.name = fields.name("name");
    if (policy.find_class(one.name) != nullptr)
        fields.refuse("name", "class '" + one.name + "' is given twice");
    one.value = fields.integer("value", kPriorities);
    one.preempts_lower = fields.word("preemptionPolicy", {"Never", "PreemptLowerPriority"}, 0) == 1;
    one.preemptible = fields.boolean("preemptible", true);
    one.global_default = fields.boolean("globalDefault", false);
    if (one.global_default)
        for (const PriorityClass& other : policy.classes)
            if (other.global_default)
                fields.refuse("globalDefault",
                              "class '" + other.name + "' is the default already; only one may be");
    policy.classes.push_back(std::move(one));
}

void read_classes(Fields& spec, PolicySpec& policy) {
    const bool given = spec.has("priorityClasses");
    spec.maps("priorityClasses", [&policy](Fields& fields) { read_class(fields, policy); });
    if (!given)
        policy.classes = default_policy().classes;
    else if (policy.classes.empty())
        spec.refuse("priorityClasses", "at least one class is needed");
}

void read_trigger(Fields& fields, PolicySpec& policy) {
    Trigger one;
    one.origin = fields.origin();
    one.class_name = read_class_name(fields, policy);
    const auto read = [&](size_t kind) {
        switch (static_cast<TriggerKind>(kind)) {
        case TriggerKind::kRequestArrival:
            break;
        case TriggerKind::kQueueDepth:
            one.above = static_cast<uint64_t>(fields.integer("above", kCount));
            one.for_time = fields.duration("for", Nanoseconds(0));
            break;
        case TriggerKind::kSloBurn: {
            const std::vector<std::string> metrics{"ttft", "tpot"};
            one.metric = metrics[fields.word("metric", metrics)];
            one.percentile = fields.percentile("percentile", 99);
            one.target = fields.duration_above_0("target");
            break;
        }
        case TriggerKind::kSchedule: {
            one.cron = fields.text("cron");
            if (Result<Cron> parsed = parse_cron(one.cron); !parsed)
                fields.refuse("cron", "'" + one.cron + "': " + parsed.error().message);
            break;
        }
        }
    };
    one.on = static_cast<TriggerKind>(
        fields.cases("on", {"RequestArrival", "QueueDepth", "SLOBurn", "Schedule"}, read));
    for (const Trigger& other : policy.triggers)
        if (other == one)
            fields.refuse("on", "the same trigger is given twice; the other is at " +
                                    other.origin.text());
    policy.triggers.push_back(std::move(one));
}

// A victim is told to be done within the deadline: more than that it is never given.
void read_grace(Fields& fields, PreemptionSpec& out) {
    const bool given = fields.has("gracePeriod");
    out.grace_period = fields.duration("gracePeriod", out.grace_period);
    if (!given)
        out.grace_period = std::min(out.grace_period, out.reclaim_deadline);
    if (out.grace_period > out.reclaim_deadline)
        fields.refuse("gracePeriod", "'" + format_duration_exact(out.grace_period) +
                                         "' is longer than reclaimDeadline ('" +
                                         format_duration_exact(out.reclaim_deadline) +
                                         (fields.has("reclaimDeadline") ? "'" : "', its default") +
                                         "), which no victim is given more than: raise "
                                         "reclaimDeadline, or shorten this");
}

void read_preemption(Fields& fields, PreemptionSpec& out) {
    out.modes = fields.words<Rung>("preemptMode", {"Pause", "Shrink", "Offload"}, out.modes);
    if (!std::is_sorted(out.modes.begin(), out.modes.end()))
        fields.refuse("preemptMode", "a ladder goes from the mildest rung to the hardest: Pause, "
                                     "Shrink, Offload");
    out.fallback_evict = fields.word("fallback", {"None", "Evict"}, 1) == 1;
    out.reclaim_deadline = fields.duration_above_0("reclaimDeadline", out.reclaim_deadline);
    read_grace(fields, out);
    out.exempt_time = fields.duration("preemptExemptTime", out.exempt_time);
    out.min_priority_delta =
        fields.integer("minPriorityDelta", out.min_priority_delta, kPriorityDeltas);
    out.victim_order = fields.words<VictimOrder>(
        "victimOrder", {"LowestPriority", "LargestReclaimable", "YoungestFirst"}, out.victim_order);
    fields.map("disruptionBudget", [&out](Fields& budget) {
        out.disruption_budget.preemptions_max =
            budget.count("maxPreemptions", out.disruption_budget.preemptions_max, kPreemptions);
        out.disruption_budget.window =
            budget.duration_above_0("window", out.disruption_budget.window);
    });
    out.kv_on_offload =
        static_cast<KvOnOffload>(fields.word("kvOnOffload", {"Auto", "Save", "Drop"}, 0));
}

void read_resume(Fields& fields, ResumeSpec& out) {
    fields.map("after", [&out](Fields& after) {
        out.online_idle = after.duration("onlineIdle", out.online_idle);
    });
    out.memory_margin_bytes = fields.bytes_or("memoryMargin", "auto");
    fields.map("verify", [&out](Fields& verify) {
        out.verify_canary = verify.boolean("canary", out.verify_canary);
        out.verify_timeout = verify.duration_above_0("timeout", out.verify_timeout);
    });
    out.on_failure = static_cast<OnResumeFailure>(fields.word("onFailure", {"Hold", "Evict"}, 0));
}

void read_attach(Fields& fields, AttachSpec& out) {
    out.verify_canary = fields.boolean("verifyCanary", out.verify_canary);
    out.on_mismatch = static_cast<OnMismatch>(fields.word("onMismatch", {"Disk", "Fail"}, 1));
    out.on_change = static_cast<OnChange>(fields.word("onChange", {"Reload", "Refuse"}, 0));
}

void read_memory(Fields& fields, MemorySpec& out) {
    out.device_reserve_bytes = fields.bytes_or("deviceReserve", "auto");
    out.host_pinned_limit_bytes = fields.bytes("hostPinnedLimit", out.host_pinned_limit_bytes);
    out.host_tier_bytes = fields.bytes("hostTier", out.host_tier_bytes);
    out.image_dir = fields.text("imageDir", "");
    out.image_limit_bytes = fields.bytes("imageLimit", out.image_limit_bytes);
    if (!out.image_dir.empty() && out.image_dir.front() != '/')
        fields.refuse("imageDir", "expected an absolute path, found '" + out.image_dir + "'");
    while (out.image_dir.size() > 1 && out.image_dir.back() == '/')
        out.image_dir.pop_back();
    if (!out.image_dir.empty() && out.image_limit_bytes == 0)
        fields.refuse("imageDir", "needs imageLimit: how many bytes of images it may hold");
    if (out.image_dir.empty() && out.image_limit_bytes > 0)
        fields.refuse("imageLimit", "needs imageDir: the folder that the images go to");
}

void read_sharing(Fields& fields, SharingSpec& out) {
    out.compute = static_cast<Sharing>(fields.word("compute", {"Gate", "TimeSlice", "MPS"}, 0));
    const std::optional<double> share =
        fields.percentage_or("batchShareWhenBusy", out.batch_share_when_busy, "SLO");
    out.batch_share_by_slo = !share;
    out.batch_share_when_busy = share.value_or(0);
    if (out.compute == Sharing::kMps && out.batch_share_when_busy < 0.01)
        fields.refuse("batchShareWhenBusy",
                      "under compute: MPS it is the share of the GPU's multiprocessors that "
                      "preemptible classes are started with, a percentage from 1% to 100%");
}

void read_tenant(Fields& fields, PolicySpec& policy) {
    TenantSpec one;
    one.origin = fields.origin();
    one.may_attach_mark = fields.mark_of("mayAttach");
    one.memory_mark = fields.mark_of("maxDeviceMemory");
    one.name = fields.name("name");
    if (policy.find_tenant(one.name) != nullptr)
        fields.refuse("name", "tenant '" + one.name + "' is given twice");
    one.users = fields.texts("users");
    for (size_t i = 0; i < one.users.size(); ++i) {
        if (one.users[i].empty())
            fields.refuse_item("users", i, "a user's name must not be empty");
        for (size_t j = 0; j < i; ++j)
            if (one.users[i] == one.users[j])
                fields.refuse_item("users", i, "user '" + one.users[i] + "' is given twice");
    }
    one.may_attach = fields.texts("mayAttach");
    const std::optional<uint64_t> most = fields.bytes_or("maxDeviceMemory", "none");
    if (most == 0)
        fields.refuse("maxDeviceMemory", "must be above 0; none is for no limit");
    one.device_memory_bytes_max = most.value_or(0);
    policy.tenants.push_back(std::move(one));
}

} // namespace

PolicySpec read_policy(Fields& spec) {
    PolicySpec policy;
    policy.mode = static_cast<PolicyMode>(spec.word("mode", {"Enforce", "Observe", "Off"}, 0));
    read_classes(spec, policy);
    spec.maps("triggers", [&policy](Fields& fields) { read_trigger(fields, policy); });
    spec.map("preemption",
             [&policy](Fields& fields) { read_preemption(fields, policy.preemption); });
    spec.map("resume", [&policy](Fields& fields) { read_resume(fields, policy.resume); });
    spec.map("attach", [&policy](Fields& fields) { read_attach(fields, policy.attach); });
    spec.map("sharing", [&policy](Fields& fields) { read_sharing(fields, policy.sharing); });
    spec.map("starvation", [&policy](Fields& fields) {
        policy.starvation.suspended_max =
            fields.duration_above_0("maxSuspendedTime", policy.starvation.suspended_max);
        policy.starvation.action =
            static_cast<StarvationAction>(fields.word("action", {"Alert", "BoostPriority"}, 0));
    });
    spec.map("memory", [&policy](Fields& fields) {
        read_memory(fields, policy.memory);
        policy.reserve_mark = fields.mark_of("deviceReserve");
    });
    spec.map("placement", [&policy](Fields& fields) {
        policy.placement.strategy =
            static_cast<PlacementStrategy>(fields.word("strategy", {"Pack", "Spread"}, 1));
    });
    spec.maps("tenants", [&policy](Fields& fields) { read_tenant(fields, policy); });
    return policy;
}

} // namespace berth::policies
