// SPDX-License-Identifier: Apache-2.0
#include "policies/fields.h"

#include <algorithm>

namespace berth::policies {

namespace {

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

void read_classes(Fields& spec, PolicySpec& policy) {
    if (!spec.has("priorityClasses")) {
        static_cast<void>(spec.node("priorityClasses")); // known, and absent
        policy.classes = default_policy().classes;
        return;
    }
    spec.maps("priorityClasses", [&policy](Fields& fields) {
        PriorityClass one;
        one.origin = fields.origin();
        one.name = fields.text("name");
        if (!is_name(one.name))
            fields.refuse("name", "not a name: '" + one.name + "'");
        if (policy.find_class(one.name) != nullptr)
            fields.refuse("name", "class '" + one.name + "' is given twice");
        one.value = fields.integer("value");
        one.preempts_lower =
            fields.word("preemptionPolicy", {"Never", "PreemptLowerPriority"}, 0) == 1;
        one.preemptible = fields.boolean("preemptible", true);
        one.global_default = fields.boolean("globalDefault", false);
        if (one.global_default)
            for (const PriorityClass& other : policy.classes)
                if (other.global_default)
                    fields.refuse("globalDefault", "class '" + other.name +
                                                       "' is the default already; only one may be");
        policy.classes.push_back(std::move(one));
    });
    if (policy.classes.empty())
        spec.refuse("priorityClasses", "at least one class is needed");
}

void check_cron(Fields& fields, const std::string& cron) {
    size_t parts = 0;
    bool inside = false;
    for (char c : cron) {
        if (c == ' ') {
            inside = false;
            continue;
        }
        if (!inside)
            ++parts;
        inside = true;
        if ((c < '0' || c > '9') && c != '*' && c != ',' && c != '-' && c != '/')
            fields.refuse("cron",
                          "expected digits and * , - / in a cron line, found '" + cron + "'");
    }
    if (parts != 5)
        fields.refuse("cron", "expected 5 parts (minute hour day month weekday), found " +
                                  std::to_string(parts) + " in '" + cron + "'");
}

void read_trigger(Fields& fields, PolicySpec& policy) {
    Trigger one;
    one.origin = fields.origin();
    one.class_name = read_class_name(fields, policy);
    one.on = static_cast<TriggerKind>(
        fields.word("on", {"RequestArrival", "QueueDepth", "SLOBurn", "Schedule"}));
    switch (one.on) {
    case TriggerKind::kRequestArrival:
        break;
    case TriggerKind::kQueueDepth:
        one.above = fields.count("above", 0);
        one.for_time = fields.duration("for", Nanoseconds(0));
        break;
    case TriggerKind::kSloBurn: {
        const std::vector<std::string> metrics{"ttft", "tpot"};
        one.metric = metrics[fields.word("metric", metrics)];
        one.percentile = fields.number("percentile", 99);
        if (one.percentile <= 0 || one.percentile >= 100)
            fields.refuse("percentile", "must lie between 0 and 100");
        one.target = fields.duration("target");
        break;
    }
    case TriggerKind::kSchedule:
        one.cron = fields.text("cron");
        check_cron(fields, one.cron);
        break;
    }
    policy.triggers.push_back(std::move(one));
}

template <typename Enum>
std::vector<Enum> read_words(Fields& fields, const std::string& field,
                             const std::vector<std::string>& words, std::vector<Enum> fallback) {
    if (!fields.has(field)) {
        static_cast<void>(fields.texts(field));
        return fallback;
    }
    std::vector<Enum> all;
    for (const std::string& text : fields.texts(field)) {
        const auto found = std::find(words.begin(), words.end(), text);
        if (found == words.end())
            fields.refuse(field, "unknown value '" + text + "'" + suggestion(text, words));
        const auto value = static_cast<Enum>(found - words.begin());
        if (std::find(all.begin(), all.end(), value) != all.end())
            fields.refuse(field, "'" + text + "' is given twice");
        all.push_back(value);
    }
    return all;
}

void read_preemption(Fields& fields, PreemptionSpec& out) {
    out.modes = read_words<Rung>(fields, "preemptMode", {"Pause", "Shrink", "Offload"}, out.modes);
    out.fallback_evict = fields.word("fallback", {"None", "Evict"}, 1) == 1;
    out.reclaim_deadline = fields.duration("reclaimDeadline", out.reclaim_deadline);
    if (out.reclaim_deadline <= Nanoseconds(0))
        fields.refuse("reclaimDeadline", "must be above 0");
    out.grace_period = fields.duration("gracePeriod", out.grace_period);
    out.exempt_time = fields.duration("preemptExemptTime", out.exempt_time);
    out.min_priority_delta = fields.integer("minPriorityDelta", out.min_priority_delta);
    if (out.min_priority_delta < 1)
        fields.refuse("minPriorityDelta", "must be 1 or more");
    out.victim_order = read_words<VictimOrder>(
        fields, "victimOrder", {"LowestPriority", "LargestReclaimable", "YoungestFirst"},
        out.victim_order);
    fields.map("disruptionBudget", [&out](Fields& budget) {
        out.disruption_budget.preemptions_max =
            budget.count("maxPreemptions", out.disruption_budget.preemptions_max);
        out.disruption_budget.window = budget.duration("window", out.disruption_budget.window);
    });
    out.kv_on_offload =
        static_cast<KvOnOffload>(fields.word("kvOnOffload", {"Auto", "Save", "Drop"}, 0));
}

std::optional<uint64_t> read_bytes_or_auto(Fields& fields, const std::string& field) {
    const YAML::Node found = fields.node(field);
    if (!found.IsDefined() || (found.IsScalar() && found.Scalar() == "auto"))
        return std::nullopt;
    return fields.bytes(field);
}

void read_resume(Fields& fields, ResumeSpec& out) {
    fields.map("after", [&out](Fields& after) {
        out.online_idle = after.duration("onlineIdle", out.online_idle);
    });
    out.memory_margin_bytes = read_bytes_or_auto(fields, "memoryMargin");
    fields.map("verify", [&out](Fields& verify) {
        out.verify_canary = verify.boolean("canary", out.verify_canary);
        out.verify_timeout = verify.duration("timeout", out.verify_timeout);
        if (out.verify_timeout <= Nanoseconds(0))
            verify.refuse("timeout", "must be above 0");
    });
    out.on_failure = static_cast<OnResumeFailure>(fields.word("onFailure", {"Hold", "Evict"}, 0));
}

void read_memory(Fields& fields, MemorySpec& out) {
    out.device_reserve_bytes = read_bytes_or_auto(fields, "deviceReserve");
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
    const size_t compute = fields.word("compute", {"Gate", "TimeSlice", "MPS"}, 0);
    if (compute == 2)
        fields.refuse("compute", "MPS is still to come: under MPS a fault in one engine ends the "
                                 "others; use Gate or TimeSlice");
    out.compute = static_cast<Sharing>(compute);
    const std::string share = fields.text("batchShareWhenBusy", "0%");
    if (share == "SLO") {
        out.batch_share_by_slo = true;
        return;
    }
    Result<double> parsed = parse_percentage(share);
    if (!parsed)
        fields.refuse("batchShareWhenBusy", parsed.error().message + " (or SLO)");
    out.batch_share_when_busy = *parsed;
}

void read_tenant(Fields& fields, PolicySpec& policy) {
    TenantSpec one;
    one.origin = fields.origin();
    one.name = fields.text("name");
    for (const TenantSpec& other : policy.tenants)
        if (other.name == one.name)
            fields.refuse("name", "tenant '" + one.name + "' is given twice");
    one.users = fields.texts("users");
    one.may_attach = fields.texts("mayAttach");
    one.device_memory_bytes_max = fields.bytes("maxDeviceMemory", 0);
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
    spec.map("attach", [&policy](Fields& fields) {
        policy.attach.verify_canary = fields.boolean("verifyCanary", policy.attach.verify_canary);
        policy.attach.on_mismatch =
            static_cast<OnMismatch>(fields.word("onMismatch", {"Disk", "Fail"}, 1));
        policy.attach.on_change =
            static_cast<OnChange>(fields.word("onChange", {"Reload", "Refuse"}, 0));
    });
    spec.map("sharing", [&policy](Fields& fields) { read_sharing(fields, policy.sharing); });
    spec.map("starvation", [&policy](Fields& fields) {
        policy.starvation.suspended_max =
            fields.duration("maxSuspendedTime", policy.starvation.suspended_max);
        policy.starvation.action =
            static_cast<StarvationAction>(fields.word("action", {"Alert", "BoostPriority"}, 0));
    });
    spec.map("memory", [&policy](Fields& fields) { read_memory(fields, policy.memory); });
    spec.maps("tenants", [&policy](Fields& fields) { read_tenant(fields, policy); });
    return policy;
}

} // namespace berth::policies
