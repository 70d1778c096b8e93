// SPDX-License-Identifier: Apache-2.0
#include "policies/spec.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::policies {

std::string Origin::text() const {
    return line > 0 ? file + ":" + std::to_string(line) + ":" + std::to_string(column) : file;
}

const PriorityClass* PolicySpec::find_class(std::string_view wanted) const {
    for (const PriorityClass& one : classes)
        if (one.name == wanted)
            return &one;
    return nullptr;
}

const TenantSpec* PolicySpec::find_tenant(std::string_view wanted) const {
    for (const TenantSpec& one : tenants)
        if (one.name == wanted)
            return &one;
    return nullptr;
}

const PriorityClass* PolicySpec::default_class() const {
    const PriorityClass* lowest = nullptr;
    for (const PriorityClass& one : classes) {
        if (one.global_default)
            return &one;
        if (lowest == nullptr || one.value < lowest->value)
            lowest = &one;
    }
    return lowest;
}

PolicySpec default_policy() {
    PolicySpec policy;
    policy.classes = {
        PriorityClass{"online", 1000, true, false, false, {}},
        PriorityClass{"batch", 100, false, true, true, {}},
    };
    return policy;
}

const ModelSpec* Documents::find_model(std::string_view name) const {
    for (const ModelSpec& one : models)
        if (one.name == name)
            return &one;
    return nullptr;
}

const InstanceSpec* Documents::find_instance(std::string_view name) const {
    for (const InstanceSpec& one : instances)
        if (one.name == name)
            return &one;
    return nullptr;
}

PolicySpec Documents::effective_policy() const {
    return policy ? *policy : default_policy();
}

std::string process_digest(const InstanceSpec& instance, const ModelSpec* model) {
    std::string text;
    // Each part with its length, so that no two lists read alike.
    auto part = [&text](const std::string& one) {
        text += std::to_string(one.size()) + ":" + one + ";";
    };
    if (model != nullptr)
        for (const std::string& one : {model->name, model->path, model->dtype, model->quantization})
            part(one);
    if (model != nullptr && model->tensor_parallel != 1)
        part("ranks " + std::to_string(model->tensor_parallel));
    for (const std::string& device : instance.devices)
        part("device " + device);
    if (instance.device_count != 1)
        part("devices " + std::to_string(instance.device_count));
    part(std::string(to_string(instance.engine.driver)));
    for (const std::string& word : instance.engine.command)
        part("word " + word);
    part(instance.engine.user);
    part(instance.engine.working_directory);
    if (!instance.engine.listen.empty())
        part("listen " + instance.engine.listen + (instance.engine.journal ? " journal" : ""));
    for (const auto& [name, value] : instance.engine.environment)
        part(fmt::format("{}={}", name, value));
    return sha256_hex(text).substr(0, 16);
}

std::string requests_digest(const InstanceSpec& instance, const ModelSpec* model) {
    InstanceSpec what_counts;
    what_counts.engine.driver = instance.engine.driver;
    what_counts.engine.command = instance.engine.command;
    what_counts.engine.environment = instance.engine.environment;
    // Without a context of its own an engine takes what its largest grant holds.
    const auto& words = instance.engine.command;
    if (std::ranges::none_of(words, [](const std::string& word) {
            return word == "--max-context" || word.starts_with("--max-context=");
        }))
        what_counts.engine.command.push_back(std::to_string(instance.memory_limit_bytes));
    return process_digest(what_counts, model);
}

std::string_view to_string(PolicyMode mode) {
    switch (mode) {
    case PolicyMode::kEnforce:
        return "Enforce";
    case PolicyMode::kObserve:
        return "Observe";
    case PolicyMode::kOff:
        return "Off";
    }
    return "";
}

std::string_view to_string(Rung rung) {
    switch (rung) {
    case Rung::kPause:
        return "Pause";
    case Rung::kShrink:
        return "Shrink";
    case Rung::kOffload:
        return "Offload";
    case Rung::kEvict:
        return "Evict";
    }
    return "";
}

std::string_view to_string(DriverKind driver) {
    return driver == DriverKind::kBerth ? "berth" : "process";
}

std::string_view to_string(RestartPolicy policy) {
    switch (policy) {
    case RestartPolicy::kAlways:
        return "Always";
    case RestartPolicy::kOnFailure:
        return "OnFailure";
    case RestartPolicy::kNever:
        return "Never";
    }
    return "";
}

std::string_view to_string(Sharing sharing) {
    switch (sharing) {
    case Sharing::kGate:
        return "Gate";
    case Sharing::kTimeSlice:
        return "TimeSlice";
    case Sharing::kMps:
        return "MPS";
    }
    return "";
}

std::string_view to_string(StandbyGrant grant) {
    return grant == StandbyGrant::kTakeOver ? "TakeOver" : "Reserved";
}

std::string_view to_string(KvOnOffload kv) {
    switch (kv) {
    case KvOnOffload::kAuto:
        return "Auto";
    case KvOnOffload::kSave:
        return "Save";
    case KvOnOffload::kDrop:
        return "Drop";
    }
    return "";
}

Result<Rung> rung_from(std::string_view name) {
    for (Rung rung : {Rung::kPause, Rung::kShrink, Rung::kOffload, Rung::kEvict})
        if (to_string(rung) == name)
            return rung;
    return fail(ErrorCode::kInvalidArgument,
                "unknown mode '" + std::string(name) + "'; known: Pause, Shrink, Offload, Evict");
}

} // namespace berth::policies
