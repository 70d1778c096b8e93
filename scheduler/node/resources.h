// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <optional>
#include <set>
#include <string>

// What a node has beside its instances: devices, weight sets, leases, loads.
namespace berth::node {

struct Device {
    DeviceId id;
    DeviceKind kind = DeviceKind::kHost;
    std::string name; // "NVIDIA H200"
    uint64_t total_bytes = 0;
};

// A sealed weight set that is resident on a device.
struct WeightSet {
    WeightSetId id;
    std::string fingerprint;
    DeviceId device;
    uint64_t bytes = 0;         // of its segments
    std::set<LoadKey> keys;     // the loads that it answers (paths to the same content share it)
    std::set<ModelName> models; // for people
    bool pinned = false;
    bool dropping = false; // DropWeights is out; the bytes count until WeightsDropped
    TimePoint last_used;
    std::optional<OperationId> operation; // the evict that waits for it
};

// A lease of somebody who is not one of our instances, or of an instance on a further set.
struct Lease {
    LeaseId id{};
    WeightSetId set;
    DeviceId device;
    std::string holder;    // for people: "pid 123 (berth bench)", an instance's name
    InstanceName instance; // empty: a guest
};

// One run of berth-loader.
struct Load {
    LoadId id{};
    LoadKey key;
    ModelName model; // empty: by path
    enum class State {
        kPlanning, // validating; nothing is placed
        kLoading,  // Go was given
        kEnding,   // sealed or failed; the process has not ended
    } state = State::kPlanning;
    uint64_t weight_bytes = 0;   // planned
    uint64_t overhead_bytes = 0; // context and staging on the device
    bool placed = false; // Go was given: its bytes count until its process has ended
    bool sealed = false; // its weights count as a weight set
    std::string phase;
    uint64_t bytes_done = 0;
    uint64_t bytes_total = 0;
    TimePoint started_at;
    TimePoint progress_at;
    int64_t priority = 0;             // the most important of those who wait for it
    std::set<OperationId> operations; // that wait for it
};

} // namespace berth::node
