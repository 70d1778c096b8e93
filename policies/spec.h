// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/node_spec.h"
#include "policies/policy_spec.h"
#include "policies/workload_spec.h"

#include <optional>
#include <string_view>
#include <vector>

// What the YAML documents say, typed, with defaults filled in. Plain values; bytes and durations
// are already numbers. policies/yaml.h reads and prints them.
namespace berth::policies {

// All documents of a node, checked against each other.
struct Documents {
    std::optional<NodeSpec> node;
    std::optional<PolicySpec> policy; // absent: default_policy()
    std::vector<ModelSpec> models;
    std::vector<InstanceSpec> instances;
    const ModelSpec* find_model(std::string_view name) const;
    const InstanceSpec* find_instance(std::string_view name) const;
    PolicySpec effective_policy() const;
    bool operator==(const Documents&) const = default;
};

std::string_view to_string(PolicyMode mode);      // "Enforce", ...
std::string_view to_string(Rung rung);            // "Pause", "Shrink", "Offload", "Evict"
std::string_view to_string(DriverKind driver);    // "berth", "process"
std::string_view to_string(RestartPolicy policy); // "Always", ...
std::string_view to_string(Sharing sharing);      // "Gate", "TimeSlice", "MPS"
std::string_view to_string(StandbyGrant grant);   // "TakeOver", "Reserved"
std::string_view to_string(KvOnOffload kv);       // "Auto", "Save", "Drop"
Result<Rung> rung_from(std::string_view name);    // InvalidArgument with the known names

} // namespace berth::policies
