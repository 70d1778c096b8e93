// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/checkpoint.h"
#include "cache/load/stream.h"
#include "cache/memory/device.h"
#include "cache/weights/fingerprint.h"
#include "cache/weights/layout.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// How a weight set comes to be, in two steps: plan_load() validates everything and moves no byte,
// run_load() reads, casts, hashes, seals. In between the caller may ask somebody for the room.
namespace berth {

struct LoadRequest {
    std::string path;
    WeightRecipe recipe;
    WeightEnvironment environment;
    CheckpointOptions checkpoint;
};

struct LoadPlan {
    Checkpoint checkpoint;
    Layout layout;
    Fingerprint fingerprint;
};

Result<LoadPlan> plan_load(const LoadRequest& request);

// What a load takes besides the segment, for whoever keeps the books.
struct LoadCost {
    std::vector<uint64_t> segment_bytes; // rounded up as the device does
    uint64_t host_staging_bytes = 0;
    uint64_t device_overhead_bytes = 0;
};
LoadCost cost_of(const LoadPlan& plan, DeviceKind kind, int threads);

struct LoadedSet {
    std::vector<Segment> segments; // sealed
    UniqueFd manifest;
    uint64_t bytes_read = 0;
    std::string filesystem;
    std::map<std::string, double> phases; // milliseconds: allocate, read, seal, manifest
    std::vector<uint64_t> segment_bytes() const;
};

// `threads` 0: chosen. On any failure nothing of the set is left. Blocks; `device` is used by the
// calling thread alone.
Result<LoadedSet> run_load(const LoadPlan& plan, Device& device, int threads,
                           const StreamProgress& progress);

} // namespace berth
