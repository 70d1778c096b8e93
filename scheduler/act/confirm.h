// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/nvml.h"
#include "scheduler/node/types.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace berth {

struct ConfirmRequest {
    node::ProcessRef process;
    std::shared_ptr<const Nvml> nvml; // set: on a GPU
    std::string gpu;
    uint64_t overhead_bytes = 0; // what the ledger charges the process beside its grant
};

// What a process and those that it has started hold as grant by the word of the system, not their
// own: host, the grant memory's mappings (of the one that has most: a child shares its parent's);
// GPU, the driver's bytes of all less the overhead that is charged (contexts and libraries may take
// less, never more unnoticed). nullopt where that cannot be told; 0 for a process that has ended.
// Blocks on /proc or the driver: on a worker.
std::optional<uint64_t> confirm_grant(const ConfirmRequest& request);

// The driver's bytes of one process on one GPU; nullopt where the driver does not say.
std::optional<uint64_t> process_bytes_on_gpu(const Nvml& nvml, const std::string& gpu, int pid);

// What a process is in and waits in, for people: "its state is D (disk sleep), it waits in
// nvidia_wait"; of the one among `pids` that lives. On a worker.
std::string waits_in(const std::vector<int>& pids);

} // namespace berth
