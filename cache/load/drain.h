// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/stream.h"
#include "cache/memory/device.h"
#include "cache/weights/device_kernels.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

// The way back: bytes that lie on a device, handed out piece by piece to whoever stores them.
namespace berth {

// Called by several threads at once, for different pieces; the bytes are valid during the call.
using DrainSink =
    std::function<Status(size_t segment, uint64_t offset, std::span<const std::byte> bytes)>;

// Every byte of every segment goes to `sink` once, in any order. What the CPU can address is handed
// out where it lies; from a GPU it comes through a few pinned slots, which the calling thread
// fills. The sink's first error, or the progress', ends it. `threads` 0: chosen. Blocks until all
// threads have ended.
Status drain(Device& device, std::span<const DeviceExtent> segments, int threads,
             const DrainSink& sink, const StreamProgress& progress);
// Of pinned slots.
uint64_t drain_staging_bytes(DeviceKind kind, int threads);

} // namespace berth
