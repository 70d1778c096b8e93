// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/records.h"

#include "scheduler/node/durable.h"

namespace berth::simulate {

bool Records::is_intent(const node::Action& action) {
    return std::holds_alternative<node::PersistInstance>(action) ||
           std::holds_alternative<node::PersistOperation>(action) ||
           std::holds_alternative<node::PersistWeights>(action) ||
           std::holds_alternative<node::PersistDevice>(action) ||
           std::holds_alternative<node::PersistRollout>(action) ||
           std::holds_alternative<node::ForgetRollout>(action) ||
           std::holds_alternative<node::ForgetInstance>(action) ||
           std::holds_alternative<node::KeepWeights>(action);
}

void Records::write(const std::vector<node::Action>& actions,
                    const std::map<node::InstanceName, std::string>& tokens, node::TimePoint) {
    for (const node::Action& action : actions) {
        if (const auto* persist = std::get_if<node::PersistInstance>(&action)) {
            node::InstanceRecovered& row = durable_.instances[persist->instance.name];
            row = node::durable(persist->instance);
            if (const auto token = tokens.find(row.name); token != tokens.end())
                row.token_sha256 = token->second;
        } else if (const auto* forget = std::get_if<node::ForgetInstance>(&action)) {
            durable_.instances.erase(forget->instance);
        } else if (const auto* operation = std::get_if<node::PersistOperation>(&action)) {
            if (operation->operation.state == node::OperationState::kRunning)
                durable_.operations[operation->operation.id] = operation->operation;
            else
                durable_.operations.erase(operation->operation.id);
        } else if (const auto* rollout = std::get_if<node::PersistRollout>(&action)) {
            durable_.rollouts[rollout->rollout.instance] = node::durable(rollout->rollout);
        } else if (const auto* over = std::get_if<node::ForgetRollout>(&action)) {
            durable_.rollouts.erase(over->instance);
        } else if (const auto* weights = std::get_if<node::PersistWeights>(&action)) {
            durable_.placements[{weights->set.device, weights->set.id}] =
                node::durable(weights->set);
        } else if (const auto* keep = std::get_if<node::KeepWeights>(&action)) {
            durable_.placements[{keep->set.device, keep->set.id}] = node::durable(keep->set);
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
