// SPDX-License-Identifier: Apache-2.0
#include "cache/load/copy_set.h"

#include "cache/load/drain.h"
#include "cache/load/progress_ticker.h"
#include "cache/load/set_filler.h"
#include "cache/weights/manifest.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace berth {

namespace {

constexpr uint64_t kHopBytes = uint64_t{8} << 20;

// Memfds are files: they are read as a checkpoint's are, which is faster than copying from a
// mapping of them.
Result<LoadedSet> copy_from_host(const SetView& set, const std::string& origin, Device& target,
                                 int threads, const StreamProgress& progress) {
    FiledSet filed{origin, {}, {}, set.manifest};
    for (size_t index = 0; index < set.segments.size(); ++index) {
        const Segment& segment = set.segments[index];
        struct stat facts{};
        if (::fstat(segment.fd.get(), &facts) != 0)
            return fail_errno("looking at a segment's descriptor");
        CheckpointFile file;
        file.name = fmt::format("segment {} of {}", index, origin);
        file.path = fmt::format("/proc/self/fd/{}", segment.fd.get());
        file.bytes = static_cast<uint64_t>(facts.st_size);
        file.mtime_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
        filed.files.push_back(std::move(file));
        filed.segments.push_back({index, 0, segment.bytes});
    }
    return load_filed_set(filed, target, threads, {}, progress);
}

std::vector<DeviceExtent> extents_of(const std::vector<Mapping>& mappings) {
    std::vector<DeviceExtent> extents;
    for (const Mapping& mapping : mappings)
        extents.push_back({mapping.data(), mapping.bytes()});
    return extents;
}

Result<LoadedSet> copy_to_host(const SetView& set, const std::string& origin, Device& source,
                               Device& target, int threads, const StreamProgress& progress) {
    BERTH_ASSIGN(SetFiller filler, SetFiller::open(target, set.segment_bytes()));
    {
        BERTH_ASSIGN(std::vector<Mapping> mappings, map_segments(set, source));
        auto store = [&](size_t segment, uint64_t offset, std::span<const std::byte> bytes) {
            std::byte* to = filler.segment(segment) + offset;
            // One call instead of a fault for each page; where the kernel does not know it, faults.
            (void)::madvise(to, bytes.size(), MADV_POPULATE_WRITE);
            std::memcpy(to, bytes.data(), bytes.size());
            return Status();
        };
        BERTH_TRY(drain(source, extents_of(mappings), threads, store, progress));
    }
    return filler.finish(set.manifest, origin);
}

// By one thread, since each device may be used by one alone: a lane's copy to the target runs while
// the next piece comes from the source.
Result<LoadedSet> copy_between_gpus(const SetView& set, const std::string& origin, Device& source,
                                    Device& target, const StreamProgress& progress) {
    BERTH_ASSIGN(SetFiller filler, SetFiller::open(target, set.segment_bytes()));
    BERTH_ASSIGN(std::vector<Mapping> mappings, map_segments(set, source));
    BERTH_ASSIGN(HostBuffer slots, target.create_host_buffer(Device::kLanes * kHopBytes));
    uint64_t total = 0;
    for (const Mapping& mapping : mappings)
        total += mapping.bytes();
    ProgressTicker ticker(progress, total);
    auto copy_all = [&]() -> Status {
        uint64_t done = 0;
        int lane = 0;
        for (size_t index = 0; index < mappings.size(); ++index)
            for (uint64_t at = 0; at < mappings[index].bytes(); at += kHopBytes) {
                uint64_t bytes = std::min(kHopBytes, mappings[index].bytes() - at);
                std::byte* slot = slots.mapping.data() + static_cast<uint64_t>(lane) * kHopBytes;
                BERTH_TRY(ticker.tick(done));
                BERTH_TRY(target.wait_lane(lane));
                BERTH_TRY(source.copy_to_host(slot, mappings[index].data() + at, bytes));
                BERTH_TRY(
                    target.start_copy_to_device(lane, filler.segment(index) + at, slot, bytes));
                done += bytes;
                lane = (lane + 1) % Device::kLanes;
            }
        return {};
    };
    Status copied = copy_all();
    // The slots and segments are freed on return: no copy may run any more, after an error neither.
    for (int lane = 0; lane < Device::kLanes; ++lane)
        if (Status waited = target.wait_lane(lane); copied && !waited)
            copied = waited;
    BERTH_TRY(copied);
    return filler.finish(set.manifest, origin);
}

} // namespace

Result<LoadedSet> copy_set(const SetView& set, Device& source, Device& target, int threads,
                           const StreamProgress& progress) {
    std::string origin = "the copy on " + source.id();
    // The manifest before any byte moves.
    BERTH_ASSIGN(Manifest manifest, Manifest::open(set.manifest, set.segment_bytes()));
    bool to_host = target.capabilities().kind == DeviceKind::kHost;
    if (!to_host) {
        BERTH_ASSIGN(SetEnvironment made_for, set_environment(manifest.fingerprint_json()));
        BERTH_TRY(check_device(made_for, target, origin));
    }
    if (source.capabilities().kind == DeviceKind::kHost) {
        // Refuses what is no sealed memfd, or too short.
        BERTH_TRY(map_segments(set, source));
        return copy_from_host(set, origin, target, threads, progress);
    }
    if (to_host)
        return copy_to_host(set, origin, source, target, threads, progress);
    return copy_between_gpus(set, origin, source, target, progress);
}

LoadCost cost_of_copy(std::span<const uint64_t> segment_bytes, DeviceKind source, DeviceKind target,
                      int threads) {
    LoadCost cost = cost_of_filed_set(segment_bytes, target, threads);
    if (source == DeviceKind::kHost)
        return cost;
    cost.host_staging_bytes = target == DeviceKind::kHost ? drain_staging_bytes(source, threads)
                                                          : Device::kLanes * kHopBytes;
    return cost;
}

} // namespace berth
