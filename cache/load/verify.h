// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "cache/weights/device_kernels.h"
#include "cache/weights/manifest.h"

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

} // namespace berth
