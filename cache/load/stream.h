// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/chunks.h"
#include "cache/memory/device.h"

#include <cstddef>
#include <cstdint>
#include <functional>

namespace berth {

// Called at most ten times a second, on the thread that called stream(); a failure ends the load
// with that error.
using StreamProgress = std::function<Status(uint64_t bytes_done, uint64_t bytes_total)>;

// How a device's bytes are moved: a host device's straight into the segment; a GPU's through a ring
// of pinned slots, small enough to stay in the processor's cache.
struct StreamShape {
    uint64_t chunk_bytes = 0;
    int threads = 0;
    int slots = 0; // 0: no ring
    uint64_t ring_bytes() const { return static_cast<uint64_t>(slots) * chunk_bytes; }
};
// `threads` 0: as many as this machine and device make use of.
StreamShape stream_shape(DeviceKind kind, int threads);

// Moves every chunk into the segment: `shape.threads` threads read, cast and hash; this thread
// alone speaks to the device. Returns when all of it is on the device and all threads have ended,
// after an error too.
Status stream(ChunkedLoad& load, Device& device, WritableSegment& segment, const StreamShape& shape,
              const StreamProgress& progress);

} // namespace berth
