// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/confirm.h"

#include "base/process.h"
#include "cache/memory/host_meter.h"

namespace berth {

std::optional<uint64_t> process_bytes_on_gpu(const Nvml& nvml, const std::string& gpu, int pid) {
    auto processes = nvml.processes(gpu);
    if (!processes)
        return std::nullopt;
    for (const NvmlProcess& one : *processes)
        if (one.pid == pid)
            return one.used_bytes;
    return 0;
}

std::optional<uint64_t> confirm_grant(const ConfirmRequest& request) {
    if (request.process.pid == 0)
        return std::nullopt;
    if (!is_alive({request.process.pid, request.process.start_ticks}))
        return 0;
    if (request.nvml == nullptr) {
        auto usage = host_usage(request.process.pid);
        if (!usage)
            return std::nullopt;
        return usage->grant_bytes;
    }
    auto bytes = process_bytes_on_gpu(*request.nvml, request.gpu, request.process.pid);
    if (!bytes)
        return std::nullopt;
    return *bytes > request.overhead_bytes ? *bytes - request.overhead_bytes : 0;
}

} // namespace berth
