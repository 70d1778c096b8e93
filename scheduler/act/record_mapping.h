// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/operation_log.h"
#include "scheduler/node/action.h"
#include "scheduler/node/event.h"
#include "scheduler/store/records.h"

#include <optional>
#include <string>
#include <vector>

// The node's state as rows, and back. The node keeps steady time; rows have the wall's.
namespace berth {

// `gate_slots` are what the instance's ranks raise the gate with, 0 for none. What is written of it
// is what node::durable() names (and the spec, for people).
InstanceRecord to_record(const node::InstanceRecovered& kept, const policies::InstanceSpec& spec,
                         const std::vector<uint32_t>& gate_slots);
InstanceRecord to_record(const node::InstanceRecovered& kept,
                         const std::vector<uint32_t>& gate_slots);
struct RecoveredInstance {
    node::InstanceRecovered event; // `alive` is the caller's to find out
    std::vector<uint32_t> gate_slots;
};
Result<RecoveredInstance> instance_from(const InstanceRecord& record);

OperationRecord to_record(const OperationEntry& entry);
Result<OperationEntry> operation_from(const OperationRecord& record);

// A device's cordon, and what such a record says of a device that is found at start.
MetaRecord cordon_record(const node::Device& device);
void take_cordon(node::DeviceSeen& device, const MetaRecord& record);

PlacementRecord to_record(const node::WeightSet& set);
PlacementRecord to_record(const node::WeightsAdopted& kept);
// Fingerprint, id, device and bytes are the keeper's word; the rest is the record's.
node::WeightsAdopted adopted_from(const PlacementRecord& record);

DecisionRecord to_record(const node::Decision& decision, const std::string& id);

} // namespace berth
