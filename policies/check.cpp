// SPDX-License-Identifier: Apache-2.0
// What can only be seen when all documents are known: names that lead from one to another, and
// numbers that exclude each other.
#include "policies/fields.h"
#include "policies/yaml.h"

#include <algorithm>

namespace berth::policies {

namespace {

template <typename Spec>
std::vector<std::string> names_of(const std::vector<Spec>& all) {
    std::vector<std::string> names;
    for (const Spec& one : all)
        names.push_back(one.name);
    return names;
}

// An error at a field of a document.
tl::unexpected<Error> refuse(const Origin& document, Mark mark, const std::string& message) {
    const Origin at = mark.line > 0 ? Origin{document.file, mark.line, mark.column} : document;
    return fail(ErrorCode::kInvalidArgument, at.text() + ": " + message, "InvalidDocument");
}

std::string instance_field(const InstanceSpec& one, const std::string& field) {
    return "Instance '" + one.name + "': field 'spec." + field + "': ";
}

Status check_names(const InstanceSpec& one, const Documents& documents, const PolicySpec& policy) {
    if (policy.find_class(one.class_name) == nullptr)
        return refuse(one.origin, one.class_mark,
                      instance_field(one, "priorityClassName") + "no class '" + one.class_name +
                          "'" + suggestion(one.class_name, names_of(policy.classes)));
    if (!one.model.empty() && documents.find_model(one.model) == nullptr)
        return refuse(one.origin, one.model_mark,
                      instance_field(one, "model") + "no Model '" + one.model + "'" +
                          (documents.models.empty()
                               ? "; no Model is given"
                               : suggestion(one.model, names_of(documents.models))));
    if (!one.tenant.empty() && policy.find_tenant(one.tenant) == nullptr)
        return refuse(one.origin, one.tenant_mark,
                      instance_field(one, "tenant") + "no tenant '" + one.tenant + "'" +
                          (policy.tenants.empty()
                               ? "; the ColocationPolicy has no tenants"
                               : suggestion(one.tenant, names_of(policy.tenants))));
    return {};
}

Status check_tenancy(const InstanceSpec& one, const PolicySpec& policy) {
    const TenantSpec* tenant = policy.find_tenant(one.tenant);
    if (tenant == nullptr)
        return {};
    const auto& may = tenant->may_attach;
    if (!one.model.empty() && !may.empty() &&
        std::find(may.begin(), may.end(), one.model) == may.end())
        return refuse(one.origin, one.model_mark,
                      instance_field(one, "model") + "tenant '" + tenant->name +
                          "' may not attach Model '" + one.model + "': add it to mayAttach at " +
                          tenant->origin.text() + suggestion(one.model, may));
    const uint64_t most = tenant->device_memory_bytes_max;
    const uint64_t wanted = one.memory_request_bytes * one.grants();
    if (most > 0 && wanted > most)
        return refuse(one.origin, one.memory_mark,
                      instance_field(one, "resources.requests.memory") + "'" +
                          format_bytes_exact(one.memory_request_bytes) + "'" +
                          (one.ranks > 1 ? " of " + std::to_string(one.ranks) + " ranks"
                           : one.device_count > 1
                               ? " on " + std::to_string(one.device_count) + " devices"
                               : std::string()) +
                          " can never be granted: maxDeviceMemory of tenant '" + tenant->name +
                          "' is " + format_bytes_exact(most) + " (" + tenant->origin.text() + ")");
    return {};
}

// The devices that the Node's document names; empty where only the machine knows.
std::vector<std::string> known_devices(const Documents& documents) {
    if (!documents.node || documents.node->devices.automatic)
        return {};
    std::vector<std::string> ids = documents.node->devices.ids;
    for (const HostDeviceSpec& one : documents.node->devices.host)
        ids.push_back(one.name);
    return ids;
}

Status check_devices(const InstanceSpec& one, const std::vector<std::string>& known) {
    if (!one.devices.empty() && one.devices.size() < one.device_count)
        return refuse(one.origin, one.devices_mark,
                      instance_field(one, "devices") + "the list has " +
                          std::to_string(one.devices.size()) + ", and it needs " +
                          std::to_string(one.device_count) +
                          ", one for each rank; with "
                          "deviceCount ranks may share devices");
    if (known.empty())
        return {};
    for (const std::string& id : one.devices)
        if (std::find(known.begin(), known.end(), id) == known.end())
            return refuse(one.origin, one.devices_mark,
                          instance_field(one, "devices") + "the node has no device '" + id + "'" +
                              suggestion(id, known));
    if (one.device_count > known.size())
        return refuse(one.origin, one.devices_mark,
                      instance_field(one, "deviceCount") + "'" + std::to_string(one.device_count) +
                          "' can never be had: the node has " + std::to_string(known.size()) +
                          " devices" +
                          (one.device_count_mark.line == 0
                               ? " (it follows from tensorParallel of Model '" + one.model +
                                     "'; with deviceCount: 1 all ranks share one)"
                               : ""));
    return {};
}

Status check_policy(const PolicySpec& policy, const Documents& documents) {
    for (const TenantSpec& tenant : policy.tenants)
        for (const std::string& model : tenant.may_attach)
            if (documents.find_model(model) == nullptr)
                return refuse(tenant.origin, tenant.may_attach_mark,
                              "tenant '" + tenant.name + "': field 'mayAttach': no Model '" +
                                  model + "'" + suggestion(model, names_of(documents.models)));
    const uint64_t reserve = policy.memory.device_reserve_bytes.value_or(0);
    if (documents.node && reserve > 0)
        for (const HostDeviceSpec& device : documents.node->devices.host)
            if (reserve >= device.memory_bytes)
                return refuse(policy.origin, policy.reserve_mark,
                              "field 'spec.memory.deviceReserve': '" + format_bytes_exact(reserve) +
                                  "' leaves nothing of device '" + device.name + "', which has " +
                                  format_bytes_exact(device.memory_bytes));
    return {};
}

// Whether the class can take anything from the other: what the planner asks before all else.
bool outranks(const PriorityClass& one, const PriorityClass& other, const PolicySpec& policy) {
    return one.preempts_lower && other.preemptible &&
           one.value - other.value >= policy.preemption.min_priority_delta;
}

Status complete_standby(InstanceSpec& one, const Documents& documents) {
    const std::string field = instance_field(one, "standbyOf");
    const InstanceSpec* active = documents.find_instance(one.standby_of);
    if (active == nullptr || active == &one)
        return refuse(one.origin, one.standby_mark,
                      field + "no other Instance '" + one.standby_of + "'" +
                          suggestion(one.standby_of, names_of(documents.instances)));
    if (!active->standby_of.empty())
        return refuse(one.origin, one.standby_mark,
                      field + "'" + active->name + "' is itself a standby of '" +
                          active->standby_of + "': name that one");
    for (const InstanceSpec& other : documents.instances)
        if (&other != &one && other.standby_of == one.standby_of)
            return refuse(one.origin, one.standby_mark,
                          field + "'" + one.standby_of + "' has a standby already: '" + other.name +
                              "' (" + other.origin.text() + ")");
    if (active->engine.listen.empty() || active->engine.driver != DriverKind::kBerth)
        return refuse(one.origin, one.standby_mark,
                      field + "Instance '" + active->name + "' (" + active->origin.text() +
                          ") has no engine.listen with driver berth: only a socket that berthd "
                          "holds can be taken over");
    one = standby_for(one, *active);
    return {};
}

Status check_listen(const InstanceSpec& one, const Documents& documents) {
    if (one.engine.listen.empty() || one.engine.listen.ends_with(":0") || !one.standby_of.empty())
        return {};
    for (const InstanceSpec& other : documents.instances)
        if (&other != &one && other.standby_of.empty() && other.engine.listen == one.engine.listen)
            return refuse(one.origin, one.listen_mark,
                          instance_field(one, "engine.listen") + "'" + one.engine.listen +
                              "' is the address of Instance '" + other.name + "' too (" +
                              other.origin.text() + ")");
    return {};
}

} // namespace

Status complete_ranks(InstanceSpec& one, const Documents& documents) {
    const ModelSpec* model = documents.find_model(one.model);
    const uint32_t parts = model == nullptr ? 1 : model->tensor_parallel;
    const bool is_berth = one.engine.driver == DriverKind::kBerth;
    if (!is_berth && parts > 1)
        return refuse(one.origin, one.model_mark,
                      instance_field(one, "model") + "Model '" + one.model + "' (" +
                          model->origin.text() + ") is of " + std::to_string(parts) +
                          " ranks (tensorParallel), and driver process is one process: use driver "
                          "berth, or a Model of one rank");
    // What was filled in here before follows its Model.
    if (one.device_count == one.ranks && one.device_count_mark.line == 0)
        one.device_count = 0;
    one.ranks = is_berth ? parts : 1;
    if (one.device_count == 0)
        one.device_count = one.ranks;
    if (is_berth && (one.device_count > one.ranks || one.ranks % one.device_count != 0))
        return refuse(one.origin, one.device_count_mark,
                      instance_field(one, "deviceCount") + "'" + std::to_string(one.device_count) +
                          "' does not go with tensorParallel: " + std::to_string(parts) +
                          " of Model '" + one.model + "'" +
                          (model == nullptr ? "" : " (" + model->origin.text() + ")") +
                          ": leave it out for a device each, or give a divisor of that: ranks "
                          "then share devices");
    return {};
}

InstanceSpec standby_for(const InstanceSpec& one, const InstanceSpec& active) {
    InstanceSpec made = active;
    made.name = one.name;
    made.standby_of = one.standby_of;
    made.standby_grant = one.standby_grant;
    made.origin = one.origin;
    made.standby_mark = one.standby_mark;
    if (!one.devices.empty()) {
        made.devices = one.devices;
        made.devices_mark = one.devices_mark;
    }
    return made;
}

Status check_documents(Documents& documents) {
    const PolicySpec policy = documents.effective_policy();
    const std::vector<std::string> devices = known_devices(documents);
    for (InstanceSpec& one : documents.instances)
        if (!one.standby_of.empty())
            BERTH_TRY(complete_standby(one, documents));
    for (InstanceSpec& one : documents.instances) {
        if (one.class_name.empty())
            one.class_name = policy.default_class()->name;
        BERTH_TRY(check_names(one, documents, policy));
        BERTH_TRY(complete_ranks(one, documents));
        BERTH_TRY(check_tenancy(one, policy));
        BERTH_TRY(check_devices(one, devices));
        BERTH_TRY(check_listen(one, documents));
    }
    return check_policy(policy, documents);
}

std::vector<std::string> advice(const Documents& documents) {
    std::vector<std::string> said;
    const PolicySpec policy = documents.effective_policy();
    const auto any_class = [&](const auto& fits) {
        return std::any_of(policy.classes.begin(), policy.classes.end(), fits);
    };
    for (const PriorityClass& one : policy.classes)
        if (one.preempts_lower &&
            !any_class([&](const PriorityClass& other) { return outranks(one, other, policy); }))
            said.push_back(one.origin.text() + ": class '" + one.name +
                           "' can never preempt anyone: no preemptible class lies " +
                           std::to_string(policy.preemption.min_priority_delta) +
                           " (minPriorityDelta) or more below it");
    for (const PriorityClass& one : policy.classes)
        if (one.preemptible && policy.classes.size() > 1 && documents.policy &&
            !any_class([&](const PriorityClass& other) { return outranks(other, one, policy); }) &&
            any_class([&](const PriorityClass& other) { return other.value > one.value; }))
            said.push_back(one.origin.text() + ": class '" + one.name +
                           "' is preemptible, and no class may preempt it");
    const PreemptionSpec& rungs = policy.preemption;
    if (rungs.modes.empty() && !rungs.fallback_evict)
        said.push_back(policy.origin.text() +
                       ": preemptMode is empty and fallback is None: nothing is ever preempted");
    if (policy.sharing.compute == Sharing::kMps)
        said.push_back(policy.origin.text() +
                       ": compute: MPS: an engine that dies while the GPU works for it can end the "
                       "others; Gate knows no such end");
    for (const Trigger& trigger : policy.triggers) {
        const PriorityClass* of = policy.find_class(trigger.class_name);
        if (of != nullptr && trigger.on != TriggerKind::kSchedule && !of->preempts_lower)
            said.push_back(trigger.origin.text() + ": class '" + of->name +
                           "' preempts nobody (preemptionPolicy: Never), so this trigger does "
                           "nothing");
    }
    for (const InstanceSpec& one : documents.instances) {
        const TenantSpec* tenant = policy.find_tenant(one.tenant);
        if (tenant != nullptr && tenant->may_attach.empty() && !one.model.empty())
            said.push_back(one.origin.text() + ": Instance '" + one.name + "' is of tenant '" +
                           tenant->name + "', which may attach no Model (mayAttach is empty)");
    }
    for (const TenantSpec& tenant : policy.tenants)
        if (tenant.users.empty())
            said.push_back(tenant.origin.text() + ": tenant '" + tenant.name +
                           "' has no users: nobody speaks for it");
    return said;
}

} // namespace berth::policies
