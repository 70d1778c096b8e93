// SPDX-License-Identifier: Apache-2.0
#include "cache/load/set_filler.h"

#include "cache/checkpoint/fault.h"
#include "cache/load/source_files.h"
#include "cache/load/tiles.h"
#include "cache/load/verify.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

// A segment after the other, in pieces of the device's tile size.
TilePlan plan_pieces(std::span<const FiledSegment> segments, uint64_t tile_bytes) {
    TilePlan plan;
    for (size_t index = 0; index < segments.size(); ++index) {
        const FiledSegment& segment = segments[index];
        for (uint64_t at = 0; at < segment.bytes; at += tile_bytes) {
            Tile tile;
            tile.file = segment.file;
            tile.offset = segment.offset + at;
            tile.bytes = tile.stored_bytes = std::min(tile_bytes, segment.bytes - at);
            Placement placement;
            placement.rank = index; // the stream's targets are the segments
            placement.width = placement.pitch = tile.bytes;
            placement.rows = 1;
            placement.to = at;
            tile.placements.push_back(placement);
            plan.bytes_to_read += tile.bytes;
            plan.tile_bytes_max = std::max(plan.tile_bytes_max, tile.bytes);
            plan.tiles.push_back(std::move(tile));
        }
    }
    return plan;
}

} // namespace

tl::unexpected<Error> checksum_mismatch(std::string_view origin,
                                        const std::vector<std::string>& different,
                                        std::string_view remedy) {
    std::string found = "bytes that are not those of its checksum";
    if (different.size() > 1)
        found += fmt::format(", and so with {} more tensors", different.size() - 1);
    return fail_fault({"ChecksumMismatch", origin, different.front(), found,
                       "the bytes that were sealed", remedy});
}

Result<SetFiller> SetFiller::open(Device& device, std::span<const uint64_t> segment_bytes) {
    SetFiller filler;
    filler.device_ = &device;
    for (uint64_t bytes : segment_bytes) {
        BERTH_ASSIGN(std::unique_ptr<WritableSegment> segment,
                     device.create_segment(bytes, "berth-weights"));
        // The manifest states the sizes, and is to stay as it is.
        if (segment->bytes() != bytes)
            return fail(ErrorCode::kUnsupported,
                        fmt::format("the set has a segment of {} bytes, of which {} would make {}: "
                                    "its allocations come in other steps; load the checkpoint "
                                    "for this device",
                                    bytes, device.id(), segment->bytes()));
        filler.segments_.push_back(std::move(segment));
    }
    filler.phases_["allocate"] = filler.clock_.lap();
    return filler;
}

std::vector<RankTarget> SetFiller::targets() const {
    std::vector<RankTarget> targets;
    for (const auto& segment : segments_)
        targets.push_back({device_, segment->data()});
    return targets;
}

Result<LoadedSet> SetFiller::finish(const UniqueFd& manifest, std::string_view origin) {
    phases_["read"] = clock_.lap();
    LoadedSet set;
    std::vector<uint64_t> sizes;
    std::vector<DeviceExtent> extents;
    for (const auto& segment : segments_) {
        extents.push_back({segment->data(), segment->bytes()});
        sizes.push_back(segment->bytes());
        set.bytes_read += segment->bytes();
    }
    BERTH_ASSIGN(Manifest opened, Manifest::open(manifest, sizes));
    BERTH_ASSIGN(std::vector<std::string> different, verify_extents(*device_, opened, extents));
    if (!different.empty())
        return checksum_mismatch(
            origin, different,
            "load the checkpoint instead, and suspect the disk or the memory that held the set");
    phases_["hash"] = clock_.lap();
    for (auto& segment : segments_) {
        BERTH_ASSIGN(Segment sealed, segment->seal());
        set.segments.push_back(std::move(sealed));
    }
    BERTH_ASSIGN(set.manifest, manifest.duplicate());
    phases_["seal"] = clock_.lap();
    set.phases = std::move(phases_);
    return set;
}

Result<LoadedSet> load_filed_set(const FiledSet& set, Device& device, int threads,
                                 ReaderOptions reader, const StreamProgress& progress) {
    // The stream knows files by a checkpoint; of tensors it asks only where some are transformed.
    Checkpoint source;
    source.files = set.files;
    BERTH_ASSIGN(SourceFiles files, SourceFiles::open(source, reader));
    std::vector<uint64_t> sizes;
    for (const FiledSegment& segment : set.segments)
        sizes.push_back(segment.bytes);
    BERTH_ASSIGN(SetFiller filler, SetFiller::open(device, sizes));
    DeviceKind kind = device.capabilities().kind;
    TilePlan tiles = plan_pieces(set.segments, tile_bytes_for(kind));
    std::vector<RankTarget> targets = filler.targets();
    BERTH_TRY(
        stream({source, tiles, files, targets}, stream_shape(kind, threads, tiles), progress));
    BERTH_TRY(files.check_unchanged());
    BERTH_ASSIGN(LoadedSet loaded, filler.finish(set.manifest, set.origin));
    loaded.filesystem = files.filesystem();
    loaded.reader = files.report();
    return loaded;
}

LoadCost cost_of_filed_set(std::span<const uint64_t> segment_bytes, DeviceKind kind, int threads) {
    std::vector<FiledSegment> segments;
    for (uint64_t bytes : segment_bytes)
        segments.push_back({0, 0, bytes});
    TilePlan tiles = plan_pieces(segments, tile_bytes_for(kind));
    StreamShape shape = stream_shape(kind, threads, tiles);
    LoadCost cost;
    cost.segment_bytes.assign(segment_bytes.begin(), segment_bytes.end());
    cost.bytes_to_read = tiles.bytes_to_read;
    cost.host_staging_bytes = shape.host_bytes();
    cost.device_overhead_bytes = device_overhead_bytes(kind, shape);
    return cost;
}

} // namespace berth
