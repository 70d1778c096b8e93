// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/keeper_link.h"
#include "scheduler/act/node_context.h"
#include "scheduler/act/zygote_link.h"

#include <memory>
#include <string>
#include <vector>

namespace berth {

// One line of `berth doctor`.
struct Check {
    std::string name;
    bool ok = true;
    std::string message;
    std::string remedy; // what to do; empty when it is well
};

// What the checks need of the decision thread, copied, so that the rest may run on a worker.
struct DoctorInput {
    std::string state_dir;
    std::string runtime_dir;
    bool is_systemd_keeper = false;
    int keeper_pid = 0;
    uint64_t keeper_restarts = 0;
    ZygoteLink::Report zygote;
    NodeContext::Mps mps;
    std::string store_error;
    std::vector<std::string> broken_invariants;
    std::shared_ptr<const Nvml> nvml;
    std::string nvml_absent;
    struct Gpu {
        std::string id;
        uint64_t ledger_bytes = 0;
        std::vector<int> known_pids; // instances and loaders
    };
    std::vector<Gpu> gpus;
};

// On the decision thread.
DoctorInput doctor_input(const NodeContext& context, const KeeperLink& keeper,
                         const ZygoteLink& zygote);
// Blocks on the driver and the file system: on a worker.
std::vector<Check> examine(const DoctorInput& input);

} // namespace berth
