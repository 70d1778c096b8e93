// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "cache/weights/manifest.h"
#include "engine_shim/protocol/gate_page.h"

#include <span>
#include <string>
#include <vector>

namespace berth {

// How a verification goes on beside others' work.
struct VerifyPace {
    uint64_t piece_bytes = 256ULL << 20;            // read between two looks at the gate
    Nanoseconds gate_max = std::chrono::seconds(1); // waited for before each piece
};

// Computes every tensor's checksum anew where it lies, a piece at a time, and returns the names of
// those that differ from the manifest's. Before each piece it waits until nobody raises the gate,
// but for a bounded time: a node that is never idle is verified too, only slower. Blocks; the
// device is used by the calling thread alone. A piece is whole blocks of checksums (64 KiB).
Result<std::vector<std::string>> verify_behind(const GateWatcher& gate, Device& device,
                                               const Manifest& manifest,
                                               std::span<const Mapping> mappings,
                                               VerifyPace pace = {});

} // namespace berth
