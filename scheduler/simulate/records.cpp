// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/records.h"

namespace berth::simulate {

namespace {

node::InstanceRecovered durable_fields(const node::Instance& i) {
    node::InstanceRecovered row;
    row.name = i.name;
    row.state = i.state;
    row.desired = i.desired;
    row.held_by = i.held_by;
    row.reason = i.reason;
    row.message = i.message;
    row.devices = i.devices;
    row.weights = i.weights.value_or(node::WeightSetId());
    row.process = i.process;
    row.token_sha256 = i.token_sha256;
    row.process_digest = i.process_digest;
    row.endpoint = i.endpoint;
    row.grant_bytes = i.grant_bytes;
    row.grant_bytes_resume = i.grant_bytes_resume;
    row.overhead_bytes = i.overhead_bytes;
    row.host_bytes = i.host_bytes;
    row.starts = i.starts;
    row.restarts = i.restarts;
    row.phases = i.phases;
    row.on_hold = i.on_hold;
    row.waiting_since = i.waiting_since;
    row.disruptions = i.disruptions;
    return row;
}

node::WeightsAdopted durable_fields(const node::WeightSet& set) {
    node::WeightsAdopted row;
    row.id = set.id;
    row.fingerprint = set.fingerprint;
    row.device = set.device;
    row.bytes = set.bytes;
    row.pinned = set.pinned;
    row.source = set.source;
    row.made_on = set.made_on;
    row.file = set.file;
    if (!set.models.empty())
        row.model = *set.models.begin();
    if (!set.keys.empty()) {
        row.path = set.keys.begin()->path;
        row.dtype = set.keys.begin()->dtype;
        row.quantization = set.keys.begin()->quantization;
    }
    return row;
}

} // namespace

bool Records::is_intent(const node::Action& action) {
    return std::holds_alternative<node::PersistInstance>(action) ||
           std::holds_alternative<node::PersistOperation>(action) ||
           std::holds_alternative<node::PersistWeights>(action) ||
           std::holds_alternative<node::PersistDevice>(action) ||
           std::holds_alternative<node::ForgetInstance>(action) ||
           std::holds_alternative<node::KeepWeights>(action);
}

void Records::write(const std::vector<node::Action>& actions,
                    const std::map<node::InstanceName, std::string>& tokens, node::TimePoint) {
    for (const node::Action& action : actions) {
        if (const auto* persist = std::get_if<node::PersistInstance>(&action)) {
            node::InstanceRecovered& row = durable_.instances[persist->instance.name];
            row = durable_fields(persist->instance);
            if (const auto token = tokens.find(row.name); token != tokens.end())
                row.token_sha256 = token->second;
        } else if (const auto* forget = std::get_if<node::ForgetInstance>(&action)) {
            durable_.instances.erase(forget->instance);
        } else if (const auto* operation = std::get_if<node::PersistOperation>(&action)) {
            if (operation->operation.state == node::OperationState::kRunning)
                durable_.operations[operation->operation.id] = operation->operation;
            else
                durable_.operations.erase(operation->operation.id);
        } else if (const auto* weights = std::get_if<node::PersistWeights>(&action)) {
            durable_.placements[{weights->set.device, weights->set.id}] =
                durable_fields(weights->set);
        } else if (const auto* keep = std::get_if<node::KeepWeights>(&action)) {
            durable_.placements[{keep->set.device, keep->set.id}] = durable_fields(keep->set);
        } else if (const auto* device = std::get_if<node::PersistDevice>(&action)) {
            if (device->device.cordoned)
                durable_.cordons[device->device.id] = device->device.cordon_reason;
            else
                durable_.cordons.erase(device->device.id);
        }
    }
}

void Records::forget_weights(const node::WeightSetId& set, const node::DeviceId& device) {
    durable_.placements.erase({device, set});
}

Durable Records::read(node::TimePoint, std::string&) {
    return durable_;
}

} // namespace berth::simulate
