// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/sealed_set.h"
#include "cache/load/stream.h"

namespace berth {

// A sealed set of one device made on another: from a GPU to the host tier (sealed memfds), from
// there to a GPU through the ring of pinned slots, between GPUs through pinned memory. The bytes
// are compared with the manifest's checksums on the target; the manifest is the same. A host device
// takes any set, as the tier that keeps it; a GPU only what was made for its kind and compute
// capability. On a failure nothing is left. Blocks; each device is used by the calling thread
// alone.
Result<LoadedSet> copy_set(const SetView& set, Device& source, Device& target, int threads,
                           const StreamProgress& progress);

// What it takes on the target and of host memory; a GPU that is the source needs a context as well.
LoadCost cost_of_copy(std::span<const uint64_t> segment_bytes, DeviceKind source, DeviceKind target,
                      int threads);

} // namespace berth
