// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "cache/weights/device_kernels.h"
#include "cache/weights/manifest.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace berth {

// Computes every tensor's checksum anew from a mapped set and compares it with the manifest's.
// Returns the names of those that differ, in the manifest's order; aliases are not counted again.
// `mappings` are the manifest's segments in order. Host memory is read in place, a GPU's is copied
// back in pieces. Blocks; `device` is used by the calling thread alone.
Result<std::vector<std::string>> verify(Device& device, const Manifest& manifest,
                                        std::span<const Mapping> mappings);
// The same for a set that may still be unsealed: where its segments lie.
Result<std::vector<std::string>> verify_extents(Device& device, const Manifest& manifest,
                                                std::span<const DeviceExtent> segments);

// As DeviceKernels::hash_blocks().
using BlockHasher =
    std::function<Result<std::vector<uint64_t>>(std::span<const DeviceExtent> extents)>;
// The same with the hashes from elsewhere: piece by piece, or behind a gate.
Result<std::vector<std::string>> find_different(const Manifest& manifest,
                                                std::span<const DeviceExtent> segments,
                                                const BlockHasher& hash);
std::vector<DeviceExtent> extents_of(std::span<const Mapping> mappings);

} // namespace berth
