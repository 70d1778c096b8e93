// SPDX-License-Identifier: Apache-2.0
#include "cache/load/load.h"

#include "cache/load/chunks.h"
#include "cache/load/source_files.h"
#include "cache/weights/manifest.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

namespace berth {

namespace {

// A bare CUDA context of the driver versions seen so far is 527 MiB; a little is left for growth.
constexpr uint64_t kCudaContextBytes = uint64_t{576} << 20;
// What the devices round segments up to; the true size comes with the sealed segment.
constexpr uint64_t kHostGranularity = 4096;
constexpr uint64_t kCudaGranularity = uint64_t{2} << 20;

class PhaseClock {
  public:
    // Milliseconds since the last call, or since the clock was made.
    double lap() {
        auto now = std::chrono::steady_clock::now();
        std::chrono::duration<double, std::milli> passed = now - start_;
        start_ = now;
        return passed.count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Result<UniqueFd> make_manifest(const LoadPlan& plan, const ChunkedLoad& load,
                               const std::vector<uint64_t>& segment_bytes) {
    ManifestParts parts;
    parts.segment_bytes = segment_bytes;
    parts.fingerprint_json = plan.fingerprint.document;
    parts.fingerprint = plan.fingerprint.sha256;
    parts.config_json = plan.checkpoint.config_json;
    std::unordered_map<std::string, size_t> places;
    for (size_t index = 0; index < plan.layout.tensors.size(); ++index) {
        const PlacedTensor& tensor = plan.layout.tensors[index];
        ManifestEntry entry;
        entry.name = tensor.name;
        entry.dtype = tensor.dtype;
        entry.shape = tensor.shape;
        entry.offset = tensor.offset;
        entry.bytes = tensor.bytes;
        entry.checksum = load.checksum(index);
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

} // namespace

std::vector<uint64_t> LoadedSet::segment_bytes() const {
    std::vector<uint64_t> sizes;
    for (const Segment& segment : segments)
        sizes.push_back(segment.bytes);
    return sizes;
}

Result<LoadPlan> plan_load(const LoadRequest& request) {
    LoadPlan plan;
    BERTH_ASSIGN(plan.checkpoint, open_checkpoint(request.path, request.checkpoint));
    BERTH_ASSIGN(plan.layout, plan_layout(plan.checkpoint, request.recipe.dtype));
    plan.fingerprint = fingerprint_of(plan.checkpoint, request.recipe, request.environment);
    return plan;
}

LoadCost cost_of(const LoadPlan& plan, DeviceKind kind, int threads) {
    StreamShape shape = stream_shape(kind, threads);
    bool on_host = kind == DeviceKind::kHost;
    uint64_t granularity = on_host ? kHostGranularity : kCudaGranularity;
    LoadCost cost;
    cost.segment_bytes = {(plan.layout.segment_bytes + granularity - 1) / granularity *
                          granularity};
    cost.host_staging_bytes = shape.ring_bytes();
    // A cast reads into a buffer of each thread's own, at most twice as wide as what it writes.
    if (plan.layout.cast_count > 0)
        cost.host_staging_bytes += 2 * shape.chunk_bytes * static_cast<uint64_t>(shape.threads);
    cost.device_overhead_bytes = on_host ? 0 : kCudaContextBytes;
    return cost;
}

Result<LoadedSet> run_load(const LoadPlan& plan, Device& device, int threads,
                           const StreamProgress& progress) {
    LoadedSet set;
    PhaseClock clock;
    BERTH_ASSIGN(SourceFiles files, SourceFiles::open(plan.checkpoint));
    set.filesystem = files.filesystem();
    BERTH_ASSIGN(std::unique_ptr<WritableSegment> segment,
                 device.create_segment(plan.layout.segment_bytes, "berth-weights"));
    set.phases["allocate"] = clock.lap();

    StreamShape shape = stream_shape(device.capabilities().kind, threads);
    ChunkedLoad load(plan.layout, files, shape.chunk_bytes);
    shape.threads = std::min(shape.threads, static_cast<int>(load.chunks().size()));
    BERTH_TRY(stream(load, device, *segment, shape, progress));
    BERTH_TRY(files.check_unchanged());
    set.bytes_read = plan.layout.bytes_to_read;
    set.phases["read"] = clock.lap();

    BERTH_ASSIGN(Segment sealed, segment->seal());
    set.segments.push_back(std::move(sealed));
    set.phases["seal"] = clock.lap();
    BERTH_ASSIGN(set.manifest, make_manifest(plan, load, set.segment_bytes()));
    set.phases["manifest"] = clock.lap();
    return set;
}

} // namespace berth
