// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <string>

// Events about weight sets: adopted, loaded, leased, dropped.
namespace berth::node {

// The keeper had it. `path`, `dtype` and `quantization` are what it was loaded for, from the
// record.
struct WeightsAdopted {
    WeightSetId id;
    std::string fingerprint;
    DeviceId device;
    uint64_t bytes = 0;
    std::string path;
    std::string dtype = "auto";
    ModelName model;
    bool pinned = false;
    std::string quantization = "none";
    uint32_t rank = 0, ranks = 1;
    std::string source;
    DeviceId made_on; // of a copy in a tier, which `device` names
    std::string file; // of an image
    // Its keeper ended together with the daemon: nobody has its descriptors, who has mapped it has
    // it still (durable.h).
    bool lost = false;
};
// The files at `path` are no longer those that the set was loaded from.
struct WeightsStale {
    WeightSetId set;
    DeviceId device;
    std::string path;
    std::string differences; // a line a field
};
// A copy run has written its image; LoaderExited follows.
struct ImageWritten {
    LoadId load{};
    uint64_t bytes = 0;
};
// Loads. LoadRequested: by model name, or by path (a guest's Attach). Without a device the best one
// is taken. With an operation its end is an OperationDone; LoadFinished comes in any case.
struct LoadRequested {
    ModelName model;
    std::string path;
    std::string dtype = "auto";
    DeviceId device;
    OperationId operation; // empty: none
    std::string quantization = "none";
    uint32_t rank = 0; // of a Model of several: which part
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

// An engine wants to fill segments itself: to publish them as `set`, or (is_private) to keep them.
// `held`: it has them already, from before this berthd, and they count whatever else is answered.
// -> PublicationAnswered; then LoadSealed or LoadFailed, and LoaderExited once its process holds
// them no longer, as for a load.
struct PublishRequested {
    uint64_t publication = 0; // chosen by the caller
    WeightSetId set;
    DeviceId device;
    ModelName model; // for people
    std::string holder;
    InstanceName instance; // empty: a guest
    uint64_t bytes = 0;
    uint64_t overhead_bytes = 0; // of the loader that fills it; until PrivateLoadFilled
    bool held = false;
    bool is_private = false;
};
// A private load's loader has ended: its context is free, the segments stay.
struct PrivateLoadFilled {
    LoadId load{};
};
// A private load's bytes are free; so are those of a publication that could not go on.
struct PrivateLoadEnded {
    LoadId load{};
};
// The instance has attached to a set whose canary it must reproduce before it counts as Ready.
struct CanaryExpected {
    InstanceName instance;
    WeightSetId set;
};
struct CanaryReported {
    InstanceName instance;
    WeightSetId set;
    std::string expected;
    std::string found;
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
// What keeps the set there would not let go; it is all still there.
struct DropFailed {
    WeightSetId set;
    DeviceId device;
    Error error;
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
    bool drop = false; // its copies in the tiers below too
};

} // namespace berth::node
