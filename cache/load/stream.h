// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/source_files.h"
#include "cache/load/tiles.h"
#include "cache/memory/device.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace berth {

// Called at most ten times a second, on the thread that called stream(); a failure ends the load
// with that error.
using StreamProgress = std::function<Status(uint64_t bytes_done, uint64_t bytes_total)>;

// One rank's memory while it is filled.
struct RankTarget {
    Device* device = nullptr;
    std::byte* data = nullptr; // the segment's
};

// How bytes are moved: on a host device by the threads that read them; to GPUs through a ring of
// pinned slots, small enough to stay in the processor's cache.
struct StreamShape {
    uint64_t slot_bytes = 0; // a tile, and room for the edges of a direct read
    int threads = 0;
    int slots = 0;           // of the ring; 0: no ring, each thread has one buffer
    uint64_t lane_bytes = 0; // of staging on the device for each lane, where a tile is quantised
    // Of host memory, the buffers of casts included.
    uint64_t host_bytes() const { return host_buffers * slot_bytes; }
    uint64_t host_buffers = 0;
};
// How large a tile should be for a kind of device.
uint64_t tile_bytes_for(DeviceKind kind);
// `threads` 0: as many as this machine and device make use of.
StreamShape stream_shape(DeviceKind kind, int threads, const TilePlan& plan);

// Where a load's parts are; all of it outlives the stream.
struct StreamJob {
    const Checkpoint& checkpoint;
    const TilePlan& plan;
    const SourceFiles& files;
    std::span<const RankTarget> targets; // by rank, all of one kind
};

// Reads every tile once and puts its parts where they belong: `shape.threads` threads read, cast
// and, on the host, place and quantise; this thread alone speaks to GPUs. Returns when all of it is
// on the devices and all threads have ended, after an error too. A tensor that cannot be quantised
// (NotFinite) is named.
Status stream(const StreamJob& job, const StreamShape& shape, const StreamProgress& progress);

} // namespace berth
