// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/nvml.h"
#include "scheduler/node/types.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace berth {

struct ConfirmRequest {
    node::ProcessRef process;
    std::shared_ptr<const Nvml> nvml; // set: on a GPU
    std::string gpu;
    uint64_t overhead_bytes = 0; // what the ledger charges the process beside its grant
};

// What a process holds as grant by the word of the system, not its own: host, its grant memory's
// mappings; GPU, the driver's bytes of the process less the overhead it is charged (its context and
// libraries may take less, never more unnoticed). nullopt where that cannot be told; 0 for a
// process that has ended. Blocks on /proc or the driver: on a worker.
std::optional<uint64_t> confirm_grant(const ConfirmRequest& request);

// The driver's bytes of one process on one GPU; nullopt where the driver does not say.
std::optional<uint64_t> process_bytes_on_gpu(const Nvml& nvml, const std::string& gpu, int pid);

} // namespace berth
