// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "engine_shim/client/client.h"

#include <functional>

namespace berth {

// A weight set that this process had loaded for itself, without berthd.
struct PrivateSet {
    std::string fingerprint;
    std::vector<uint64_t> segment_bytes;
    std::vector<UniqueFd> fds; // manifest, then each segment
};

struct PrivateLoadRequest {
    std::string model_path;
    std::string device;
    std::string dtype;        // empty or "auto": as stored
    std::string quantization; // empty or "none": as stored
    protocol::Environment environment;
    uint32_t rank = 0, ranks = 1; // the part of one tensor-parallel rank
    // Called once the loader knows what it needs; an error ends the load with it.
    std::function<Status(const protocol::Planned&)> may_go;
};

// Runs berth-loader ($BERTH_LOADER, else the one beside this program) and speaks berthd's part to
// it. Blocks until it has ended. A loader that dies is reported with how it died.
Result<PrivateSet> load_privately(const PrivateLoadRequest& request,
                                  const ProgressCallback& progress);

} // namespace berth
