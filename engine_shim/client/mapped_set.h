// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"

#include <span>
#include <string>
#include <vector>

namespace berth {

// Maps what berthd or a loader sent: fds are the manifest, then each segment. A set that this
// process has mapped already is given again and the descriptors are closed: importing twice costs
// driver references and address space. `own` goes when the mapping has gone, or with this call
// where none is made. Thread-safe across Clients; mapping happens under one lock.
Result<std::shared_ptr<const WeightSet::Mapped>>
map_set(Device& device, const std::string& fingerprint, std::span<const uint64_t> segment_bytes,
        std::vector<UniqueFd> fds, std::shared_ptr<void> own = nullptr);

} // namespace berth
