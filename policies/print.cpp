// SPDX-License-Identifier: Apache-2.0
#include "policies/yaml.h"

#include <cmath>
#include <sstream>

namespace berth::policies {

namespace {

// A scalar that any YAML reader takes for the same text.
std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20 || byte == 0x7f) {
            static constexpr char kDigits[] = "0123456789abcdef";
            out += "\\x";
            out += kDigits[byte >> 4];
            out += kDigits[byte & 15];
        } else {
            out += c;
        }
    }
    return out + "\"";
}

std::string list(const std::vector<std::string>& texts) {
    std::string out = "[";
    for (const std::string& text : texts)
        out += (out.size() > 1 ? ", " : "") + quoted(text);
    return out + "]";
}

std::string boolean(bool value) {
    return value ? "true" : "false";
}
std::string bytes(uint64_t value) {
    return format_bytes_exact(value);
}
std::string duration(Nanoseconds value) {
    return format_duration_exact(value);
}
std::string bytes_or_auto(const std::optional<uint64_t>& value) {
    return value ? bytes(*value) : "auto";
}
std::string number(double value) {
    std::ostringstream out;
    out.precision(15);
    out << value;
    return out.str();
}

void head(std::ostream& out, const char* kind, const std::string& name) {
    out << "apiVersion: berth/v1\nkind: " << kind << "\nmetadata: {name: " << quoted(name)
        << "}\nspec:\n";
}

void print(std::ostream& out, const NodeSpec& node) {
    head(out, "Node", node.name);
    if (!node.socket.empty())
        out << "  socket: " << quoted(node.socket) << "\n";
    if (!node.group.empty())
        out << "  group: " << quoted(node.group) << "\n";
    if (!node.state_dir.empty())
        out << "  stateDir: " << quoted(node.state_dir) << "\n";
    if (node.devices.automatic) {
        out << "  devices: auto\n";
    } else if (!node.devices.ids.empty()) {
        out << "  devices: " << list(node.devices.ids) << "\n";
    } else {
        out << "  devices:\n    host:\n";
        for (const HostDeviceSpec& one : node.devices.host)
            out << "      - {name: " << quoted(one.name) << ", memory: " << bytes(one.memory_bytes)
                << "}\n";
    }
    out << "  keeper: " << (node.keeper == KeeperKind::kProcess ? "process" : "systemd") << "\n";
    out << "  policies: " << list(node.policies) << "\n";
    if (const auto& tcp = node.admin_tcp) {
        out << "  adminTcp: {listen: " << quoted(tcp->listen)
            << ", tokenFile: " << quoted(tcp->token_file);
        if (!tcp->certificate_file.empty())
            out << ", certificateFile: " << quoted(tcp->certificate_file)
                << ", keyFile: " << quoted(tcp->key_file);
        out << ", anywhere: " << boolean(tcp->anywhere) << "}\n";
    }
    if (!node.access.empty())
        out << "  access:\n";
    for (const AccessRule& one : node.access)
        out << "    - {role: " << to_string(one.role) << ", users: " << list(one.users)
            << ", groups: " << list(one.groups) << "}\n";
}

void print(std::ostream& out, const Trigger& trigger) {
    out << "    - {class: " << quoted(trigger.class_name) << ", on: ";
    switch (trigger.on) {
    case TriggerKind::kRequestArrival:
        out << "RequestArrival";
        break;
    case TriggerKind::kQueueDepth:
        out << "QueueDepth, above: " << trigger.above << ", for: " << duration(trigger.for_time);
        break;
    case TriggerKind::kSloBurn:
        out << "SLOBurn, metric: " << trigger.metric
            << ", percentile: " << number(trigger.percentile)
            << ", target: " << duration(trigger.target);
        break;
    case TriggerKind::kSchedule:
        out << "Schedule, cron: " << quoted(trigger.cron);
        break;
    }
    out << "}\n";
}

void print(std::ostream& out, const PreemptionSpec& spec) {
    out << "  preemption:\n    preemptMode: [";
    const char* separator = "";
    for (Rung rung : spec.modes) {
        out << separator << to_string(rung);
        separator = ", ";
    }
    out << "]\n    fallback: " << (spec.fallback_evict ? "Evict" : "None")
        << "\n    reclaimDeadline: " << duration(spec.reclaim_deadline)
        << "\n    gracePeriod: " << duration(spec.grace_period)
        << "\n    preemptExemptTime: " << duration(spec.exempt_time)
        << "\n    minPriorityDelta: " << spec.min_priority_delta << "\n    victimOrder: [";
    separator = "";
    for (VictimOrder order : spec.victim_order) {
        static constexpr const char* kNames[] = {"LowestPriority", "LargestReclaimable",
                                                 "YoungestFirst"};
        out << separator << kNames[static_cast<size_t>(order)];
        separator = ", ";
    }
    out << "]\n    disruptionBudget: {maxPreemptions: " << spec.disruption_budget.preemptions_max
        << ", window: " << duration(spec.disruption_budget.window)
        << "}\n    kvOnOffload: " << to_string(spec.kv_on_offload) << "\n";
}

void print_tail(std::ostream& out, const PolicySpec& policy) {
    out << "  resume:\n    after: {onlineIdle: " << duration(policy.resume.online_idle)
        << "}\n    memoryMargin: " << bytes_or_auto(policy.resume.memory_margin_bytes)
        << "\n    verify: {canary: " << boolean(policy.resume.verify_canary)
        << ", timeout: " << duration(policy.resume.verify_timeout) << "}\n    onFailure: "
        << (policy.resume.on_failure == OnResumeFailure::kHold ? "Hold" : "Evict") << "\n";
    out << "  attach: {verifyCanary: " << boolean(policy.attach.verify_canary)
        << ", onMismatch: " << (policy.attach.on_mismatch == OnMismatch::kDisk ? "Disk" : "Fail")
        << ", onChange: " << (policy.attach.on_change == OnChange::kReload ? "Reload" : "Refuse")
        << "}\n";
    out << "  sharing: {compute: " << to_string(policy.sharing.compute) << ", batchShareWhenBusy: "
        << (policy.sharing.batch_share_by_slo
                ? std::string("SLO")
                : number(policy.sharing.batch_share_when_busy * 100) + "%")
        << "}\n  starvation: {maxSuspendedTime: " << duration(policy.starvation.suspended_max)
        << ", action: "
        << (policy.starvation.action == StarvationAction::kAlert ? "Alert" : "BoostPriority")
        << "}\n  memory: {deviceReserve: " << bytes_or_auto(policy.memory.device_reserve_bytes)
        << ", hostPinnedLimit: " << bytes(policy.memory.host_pinned_limit_bytes)
        << ", hostTier: " << bytes(policy.memory.host_tier_bytes)
        << (policy.memory.image_dir.empty()
                ? std::string()
                : ", imageDir: " + quoted(policy.memory.image_dir) +
                      ", imageLimit: " + bytes(policy.memory.image_limit_bytes))
        << "}\n  placement: {strategy: "
        << (policy.placement.strategy == PlacementStrategy::kPack ? "Pack" : "Spread")
        << "}\n  tenants:" << (policy.tenants.empty() ? " []" : "") << "\n";
    for (const TenantSpec& one : policy.tenants)
        out << "    - {name: " << quoted(one.name) << ", users: " << list(one.users)
            << (one.may_attach.empty() ? "" : ", mayAttach: " + list(one.may_attach))
            << ", maxDeviceMemory: "
            << (one.device_memory_bytes_max > 0 ? bytes(one.device_memory_bytes_max) : "none")
            << "}\n";
}

void print(std::ostream& out, const PolicySpec& policy) {
    head(out, "ColocationPolicy", policy.name);
    out << "  mode: " << to_string(policy.mode) << "\n  priorityClasses:\n";
    for (const PriorityClass& one : policy.classes)
        out << "    - {name: " << quoted(one.name) << ", value: " << one.value
            << ", preemptionPolicy: " << (one.preempts_lower ? "PreemptLowerPriority" : "Never")
            << ", preemptible: " << boolean(one.preemptible)
            << ", globalDefault: " << boolean(one.global_default) << "}\n";
    out << "  triggers:" << (policy.triggers.empty() ? " []" : "") << "\n";
    for (const Trigger& one : policy.triggers)
        print(out, one);
    print(out, policy.preemption);
    print_tail(out, policy);
}

void print(std::ostream& out, const ModelSpec& model) {
    head(out, "Model", model.name);
    out << "  path: " << quoted(model.path) << "\n  dtype: " << model.dtype
        << "\n  quantization: " << quoted(model.quantization)
        << "\n  tensorParallel: " << model.tensor_parallel << "\n  pin: " << boolean(model.pin)
        << "\n";
}

void print(std::ostream& out, const SloSpec& slo) {
    out << "  slo: {";
    if (slo.ttft > Nanoseconds(0))
        out << "ttft: " << duration(slo.ttft) << ", ";
    if (slo.tpot > Nanoseconds(0))
        out << "tpot: " << duration(slo.tpot) << ", ";
    out << "percentile: " << number(slo.percentile) << "}\n";
}

// How many devices it takes is its Model's word, also when that becomes another.
bool follows_model(const InstanceSpec& one) {
    return one.device_count == 0 ||
           (one.device_count == one.ranks && one.device_count_mark.line == 0 &&
            one.engine.driver == DriverKind::kBerth);
}

void print(std::ostream& out, const InstanceSpec& one) {
    head(out, "Instance", one.name);
    if (!one.standby_of.empty()) { // all else is the other's
        out << "  standbyOf: " << quoted(one.standby_of)
            << "\n  standby: {grant: " << to_string(one.standby_grant)
            << "}\n  devices: " << (one.devices.empty() ? "auto" : list(one.devices)) << "\n";
        return;
    }
    if (!one.model.empty())
        out << "  model: " << quoted(one.model) << "\n";
    if (!one.class_name.empty())
        out << "  priorityClassName: " << quoted(one.class_name) << "\n";
    if (!one.tenant.empty())
        out << "  tenant: " << quoted(one.tenant) << "\n";
    out << "  devices: " << (one.devices.empty() ? "auto" : list(one.devices))
        << (follows_model(one) ? "" : "\n  deviceCount: " + std::to_string(one.device_count))
        << "\n  resources: {requests: {memory: " << bytes(one.memory_request_bytes)
        << "}, limits: {memory: " << bytes(one.memory_limit_bytes) << "}}\n";
    if (one.slo)
        print(out, *one.slo);
    out << "  restart: " << to_string(one.restart)
        << "\n  engine:\n    driver: " << to_string(one.engine.driver)
        << "\n    command: " << list(one.engine.command) << "\n";
    if (!one.engine.user.empty())
        out << "    user: " << quoted(one.engine.user) << "\n";
    out << "    environment: {";
    const char* separator = "";
    for (const auto& [name, value] : one.engine.environment) {
        out << separator << quoted(name) << ": " << quoted(value);
        separator = ", ";
    }
    out << "}\n";
    if (!one.engine.working_directory.empty())
        out << "    workingDirectory: " << quoted(one.engine.working_directory) << "\n";
    out << "    startDeadline: " << duration(one.engine.start_deadline) << "\n";
    if (!one.engine.listen.empty())
        out << "    listen: " << quoted(one.engine.listen)
            << "\n    journal: " << (one.engine.journal ? "true" : "false")
            << "\n    stepDeadline: " << duration(one.engine.step_deadline) << "\n";
}

} // namespace

std::string effective_yaml(const PolicySpec& policy) {
    std::ostringstream out;
    print(out, policy);
    return out.str();
}

std::string effective_yaml(const InstanceSpec& instance) {
    std::ostringstream out;
    print(out, instance);
    return out.str();
}

std::string effective_yaml(const Documents& documents) {
    std::ostringstream out;
    print(out, documents.effective_policy());
    if (documents.node) {
        out << "---\n";
        print(out, *documents.node);
    }
    for (const ModelSpec& one : documents.models) {
        out << "---\n";
        print(out, one);
    }
    for (const InstanceSpec& one : documents.instances) {
        out << "---\n";
        print(out, one);
    }
    return out.str();
}

} // namespace berth::policies
