// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "engine_shim/client/client.h"

namespace berth {

// A weight set that this process had loaded for itself, without berthd.
struct PrivateSet {
    std::string fingerprint;
    std::vector<uint64_t> segment_bytes;
    std::vector<UniqueFd> fds; // manifest, then each segment
};

// Runs berth-loader ($BERTH_LOADER, else the one beside this program) and speaks berthd's part to
// it. Blocks until it has ended. A loader that dies is reported with how it died.
Result<PrivateSet> load_privately(const std::string& model_path, const std::string& device_id,
                                  const protocol::Environment& environment,
                                  const ProgressCallback& progress);

} // namespace berth
