// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <string>

// Events about weight sets: adopted, loaded, leased, dropped.
namespace berth::node {

// The keeper had it. `path` and `dtype` are what it was loaded for, from the record.
struct WeightsAdopted {
    WeightSetId id;
    std::string fingerprint;
    DeviceId device;
    uint64_t bytes = 0;
    std::string path;
    std::string dtype = "auto";
    ModelName model;
    bool pinned = false;
};
// Loads. LoadRequested: by model name, or by path (a guest's Attach). Without a device the best one
// is taken. With an operation its end is an OperationDone; LoadFinished comes in any case.
struct LoadRequested {
    ModelName model;
    std::string path;
    std::string dtype = "auto";
    DeviceId device;
    OperationId operation; // empty: none
};
struct LoadPlanned {
    LoadId load{};
    std::string fingerprint;
    WeightSetId set;
    uint64_t weight_bytes = 0;   // sum of segment_bytes
    uint64_t overhead_bytes = 0; // device_overhead_bytes
};
struct LoadProgress {
    LoadId load{};
    std::string phase;
    uint64_t bytes_done = 0;
    uint64_t bytes_total = 0;
};
struct LoadSealed {
    LoadId load{};
    std::string fingerprint;
    WeightSetId set;
    uint64_t bytes = 0;
};
struct LoadFailed {
    LoadId load{};
    Error error;
};
// The loader's process has ended (or could not be started: LoadFailed first). Always comes.
struct LoaderExited {
    LoadId load{};
    std::string description; // "exit code 1", "killed by SIGKILL"
};

// Leases of guests, and of instances on sets other than their own.
struct LeaseOpened {
    LeaseId lease{};
    WeightSetId set;
    DeviceId device;
    std::string holder;
    InstanceName instance; // empty: a guest
};
struct LeaseClosed {
    LeaseId lease{};
};
struct WeightsDropped { // descriptors closed here and in the keeper
    WeightSetId set;
    DeviceId device;
};
struct WeightsPin {
    OperationId operation;
    WeightSetId set;
    bool pinned = true; // false: unpin
};
struct WeightsEvict {
    OperationId operation;
    WeightSetId set;
    bool dry_run = false;
};

} // namespace berth::node
