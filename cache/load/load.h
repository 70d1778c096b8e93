// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/checkpoint.h"
#include "cache/load/stream.h"
#include "cache/load/tiles.h"
#include "cache/memory/device.h"
#include "cache/weights/fingerprint.h"
#include "cache/weights/layout.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

// How weight sets come to be, in two steps: plan_load() validates everything and moves no byte,
// run_load() reads, casts, slices, quantises, hashes, seals. In between the caller may ask somebody
// for the room. One load feeds all the ranks it is asked for and reads each byte once.
namespace berth {

struct LoadRequest {
    std::string path;
    WeightRecipe recipe; // its rank is that of the first set
    WeightEnvironment environment;
    CheckpointOptions checkpoint;
    std::vector<uint32_t> ranks; // empty: the recipe's alone
    ReaderOptions reader;
};

// What one rank gets.
struct RankPlan {
    uint32_t rank = 0;
    Layout layout;
    Fingerprint fingerprint;
};

struct LoadPlan {
    Checkpoint checkpoint;
    WeightRecipe recipe;
    std::vector<RankPlan> ranks; // in the order of the request
    ReaderOptions reader;
    const Layout& layout() const { return ranks[0].layout; }
    const Fingerprint& fingerprint() const { return ranks[0].fingerprint; }
};

Result<LoadPlan> plan_load(const LoadRequest& request);
// The plan cut for devices of one kind: made once a load, for its cost and for its run.
TilePlan tiles_of(const LoadPlan& plan, DeviceKind kind);

// What a load takes besides the segments, for whoever keeps the books.
struct LoadCost {
    std::vector<uint64_t> segment_bytes; // by rank, rounded up as the device does
    uint64_t bytes_to_read = 0;          // from disk, each byte once
    uint64_t host_staging_bytes = 0;
    uint64_t device_overhead_bytes = 0; // on each device
};
LoadCost cost_of(const LoadPlan& plan, const TilePlan& tiles, DeviceKind kind, int threads);
LoadCost cost_of(const LoadPlan& plan, DeviceKind kind, int threads);
// On one device besides the segments: a context, code, and what lanes need.
uint64_t device_overhead_bytes(DeviceKind kind, const StreamShape& shape);

struct LoadedSet {
    std::vector<Segment> segments; // sealed
    UniqueFd manifest;
    uint64_t bytes_read = 0; // of the whole load
    std::string filesystem;
    ReadReport reader;
    std::map<std::string, double> phases; // milliseconds: allocate, read, hash, seal, manifest
    std::vector<uint64_t> segment_bytes() const;
};

// One set for each rank of the plan, onto devices[rank] (which may be one device several times; all
// of one kind). `threads` 0: chosen. On any failure nothing of any set is left. Blocks; the devices
// are used by the calling thread alone.
Result<std::vector<LoadedSet>> run_load(const LoadPlan& plan, const TilePlan& tiles,
                                        std::span<Device* const> devices, int threads,
                                        const StreamProgress& progress);
Result<std::vector<LoadedSet>> run_load(const LoadPlan& plan, std::span<Device* const> devices,
                                        int threads, const StreamProgress& progress);
// For a plan of one rank.
Result<LoadedSet> run_load(const LoadPlan& plan, Device& device, int threads,
                           const StreamProgress& progress);

} // namespace berth
