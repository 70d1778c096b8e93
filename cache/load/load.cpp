// SPDX-License-Identifier: Apache-2.0
#include "cache/load/load.h"

#include "base/round.h"
#include "cache/load/phase_clock.h"
#include "cache/load/source_files.h"
#include "cache/weights/checksum.h"
#include "cache/weights/device_kernels.h"
#include "cache/weights/manifest.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace berth {

namespace {

// A bare CUDA context of the driver versions seen so far is 527 MiB; a little is left for growth.
constexpr uint64_t kCudaContextBytes = uint64_t{576} << 20;
// The code of transforms and checksums, and the table of blocks that are hashed.
constexpr uint64_t kKernelBytes = uint64_t{32} << 20;
// What the devices round segments up to; the true size comes with the sealed segment.
constexpr uint64_t kHostGranularity = 4096;
constexpr uint64_t kCudaGranularity = uint64_t{2} << 20;

// Every tensor's checksum, of the bytes as they lie on the device now.
Result<std::vector<Checksum>> hash_tensors(Device& device, const std::byte* segment,
                                           const Layout& layout) {
    std::vector<DeviceExtent> extents;
    for (const PlacedTensor& tensor : layout.tensors)
        extents.push_back({segment + tensor.offset, tensor.bytes});
    return checksums_of(device, extents);
}

Result<UniqueFd> make_manifest(const Checkpoint& checkpoint, const RankPlan& plan,
                               std::span<const Checksum> checksums,
                               const std::vector<uint64_t>& segment_bytes) {
    ManifestParts parts;
    parts.segment_bytes = segment_bytes;
    parts.fingerprint_json = plan.fingerprint.document;
    parts.fingerprint = plan.fingerprint.sha256;
    parts.config_json = checkpoint.config_json;
    std::unordered_map<std::string, size_t> places;
    for (size_t index = 0; index < plan.layout.tensors.size(); ++index) {
        const PlacedTensor& tensor = plan.layout.tensors[index];
        ManifestEntry entry;
        entry.name = tensor.name;
        entry.dtype = tensor.dtype;
        entry.shape = tensor.shape;
        entry.offset = tensor.offset;
        entry.bytes = tensor.bytes;
        entry.checksum = checksums[index];
        places.emplace(tensor.name, parts.entries.size());
        parts.entries.push_back(std::move(entry));
    }
    for (const CheckpointAlias& alias : plan.layout.aliases) {
        auto place = places.find(alias.of);
        if (place == places.end())
            return fail(ErrorCode::kInternal,
                        "an alias of '" + alias.of + "', which is not placed");
        ManifestEntry entry = parts.entries[place->second];
        entry.name = alias.name;
        entry.alias_of = alias.of;
        parts.entries.push_back(std::move(entry));
    }
    return write_manifest(parts);
}

std::vector<const Layout*> layouts_of(const LoadPlan& plan) {
    std::vector<const Layout*> layouts;
    for (const RankPlan& rank : plan.ranks)
        layouts.push_back(&rank.layout);
    return layouts;
}

} // namespace

std::vector<uint64_t> LoadedSet::segment_bytes() const {
    std::vector<uint64_t> sizes;
    for (const Segment& segment : segments)
        sizes.push_back(segment.bytes);
    return sizes;
}

Result<LoadPlan> plan_load(const LoadRequest& request) {
    LoadPlan plan;
    plan.recipe = request.recipe;
    plan.reader = request.reader;
    BERTH_ASSIGN(plan.checkpoint, open_checkpoint(request.path, request.checkpoint));
    std::vector<uint32_t> ranks = request.ranks;
    if (ranks.empty())
        ranks.push_back(request.recipe.rank);
    for (uint32_t rank : ranks) {
        WeightRecipe recipe = request.recipe;
        recipe.rank = rank;
        RankPlan one;
        one.rank = rank;
        BERTH_ASSIGN(one.layout, plan_layout(plan.checkpoint, recipe));
        one.fingerprint = fingerprint_of(plan.checkpoint, recipe, request.environment);
        plan.ranks.push_back(std::move(one));
    }
    return plan;
}

TilePlan tiles_of(const LoadPlan& plan, DeviceKind kind) {
    return plan_tiles(plan.checkpoint, layouts_of(plan), tile_bytes_for(kind));
}

LoadCost cost_of(const LoadPlan& plan, DeviceKind kind, int threads) {
    return cost_of(plan, tiles_of(plan, kind), kind, threads);
}

LoadCost cost_of(const LoadPlan& plan, const TilePlan& tiles, DeviceKind kind, int threads) {
    StreamShape shape = stream_shape(kind, threads, tiles);
    bool on_host = kind == DeviceKind::kHost;
    uint64_t granularity = on_host ? kHostGranularity : kCudaGranularity;
    LoadCost cost;
    for (const RankPlan& rank : plan.ranks)
        cost.segment_bytes.push_back(round_up(rank.layout.segment_bytes, granularity));
    cost.bytes_to_read = tiles.bytes_to_read;
    cost.host_staging_bytes = shape.host_bytes();
    cost.device_overhead_bytes = device_overhead_bytes(kind, shape);
    return cost;
}

uint64_t device_overhead_bytes(DeviceKind kind, const StreamShape& shape) {
    if (kind == DeviceKind::kHost)
        return 0;
    return kCudaContextBytes + kKernelBytes + Device::kLanes * shape.lane_bytes;
}

Result<std::vector<LoadedSet>> run_load(const LoadPlan& plan, std::span<Device* const> devices,
                                        int threads, const StreamProgress& progress) {
    DeviceKind kind = devices.empty() ? DeviceKind::kHost : devices[0]->capabilities().kind;
    return run_load(plan, tiles_of(plan, kind), devices, threads, progress);
}

Result<std::vector<LoadedSet>> run_load(const LoadPlan& plan, const TilePlan& tiles,
                                        std::span<Device* const> devices, int threads,
                                        const StreamProgress& progress) {
    if (devices.size() != plan.ranks.size())
        return fail(ErrorCode::kInvalidArgument, std::to_string(plan.ranks.size()) + " ranks and " +
                                                     std::to_string(devices.size()) +
                                                     " devices: give one for each");
    DeviceKind kind = devices[0]->capabilities().kind;
    std::map<std::string, double> phases;
    PhaseClock clock;
    BERTH_ASSIGN(SourceFiles files, SourceFiles::open(plan.checkpoint, plan.reader));
    std::vector<std::unique_ptr<WritableSegment>> segments;
    std::vector<RankTarget> targets;
    for (size_t index = 0; index < devices.size(); ++index) {
        if (devices[index]->capabilities().kind != kind)
            return fail(ErrorCode::kInvalidArgument, "one load is for devices of one kind");
        BERTH_ASSIGN(std::unique_ptr<WritableSegment> segment,
                     devices[index]->create_segment(plan.ranks[index].layout.segment_bytes,
                                                    "berth-weights"));
        targets.push_back({devices[index], segment->data()});
        segments.push_back(std::move(segment));
    }
    phases["allocate"] = clock.lap();

    StreamShape shape = stream_shape(kind, threads, tiles);
    BERTH_TRY(stream({plan.checkpoint, tiles, files, targets}, shape, progress));
    BERTH_TRY(files.check_unchanged());
    phases["read"] = clock.lap();

    std::vector<std::vector<Checksum>> checksums;
    for (size_t index = 0; index < devices.size(); ++index) {
        BERTH_ASSIGN(std::vector<Checksum> all,
                     hash_tensors(*devices[index], targets[index].data, plan.ranks[index].layout));
        checksums.push_back(std::move(all));
    }
    phases["hash"] = clock.lap();

    std::vector<LoadedSet> sets(devices.size());
    for (size_t index = 0; index < devices.size(); ++index) {
        BERTH_ASSIGN(Segment sealed, segments[index]->seal());
        sets[index].segments.push_back(std::move(sealed));
    }
    phases["seal"] = clock.lap();
    for (size_t index = 0; index < devices.size(); ++index) {
        LoadedSet& set = sets[index];
        BERTH_ASSIGN(set.manifest, make_manifest(plan.checkpoint, plan.ranks[index],
                                                 checksums[index], set.segment_bytes()));
        set.bytes_read = tiles.bytes_to_read;
        set.filesystem = files.filesystem();
        set.reader = files.report();
    }
    phases["manifest"] = clock.lap();
    for (LoadedSet& set : sets)
        set.phases = phases;
    return sets;
}

Result<LoadedSet> run_load(const LoadPlan& plan, Device& device, int threads,
                           const StreamProgress& progress) {
    Device* one[] = {&device};
    BERTH_ASSIGN(std::vector<LoadedSet> sets, run_load(plan, one, threads, progress));
    return std::move(sets[0]);
}

} // namespace berth
