// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/confirm.h"

#include "base/process.h"
#include "base/unique_fd.h"
#include "cache/memory/host_meter.h"
#include "scheduler/act/process_tree.h"

#include <fmt/format.h>

#include <algorithm>

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

namespace {

std::string waits_in(int pid) {
    const std::string folder = fmt::format("/proc/{}/", pid);
    std::string state;
    if (auto status = read_file(folder + "status", 16 << 10))
        if (const size_t at = status->find("State:"); at != std::string::npos) {
            const size_t begin = status->find_first_not_of(" \t", at + 6);
            state = status->substr(begin, status->find('\n', begin) - begin);
        }
    if (state.empty())
        return "";
    std::string words = fmt::format("pid {}: its state is {}", pid, state);
    // Both need rights that a berthd of a plain user may not have.
    if (auto wchan = read_file(folder + "wchan", 256); wchan && !wchan->empty() && *wchan != "0")
        words += ", it waits in " + *wchan;
    if (auto stack = read_file(folder + "stack", 4096); stack && !stack->empty())
        words += ", kernel stack: " + stack->substr(0, stack->find('\n'));
    return words;
}

} // namespace

std::string waits_in(const std::vector<int>& pids) {
    std::string all;
    for (int pid : pids)
        if (std::string words = waits_in(pid);
            !words.empty() && words.find(" Z ") == std::string::npos)
            all += (all.empty() ? "" : "; ") + words;
    return all.empty() ? "no process of it is there any more; the driver still counts its memory"
                       : all;
}

std::optional<uint64_t> confirm_grant(const ConfirmRequest& request) {
    if (request.process.pid == 0)
        return std::nullopt;
    if (!is_alive({request.process.pid, request.process.start_ticks}))
        return 0;
    const std::vector<int> pids = with_descendants(request.process.pid);
    if (request.nvml == nullptr) {
        std::optional<uint64_t> most;
        for (int pid : pids)
            if (auto usage = host_usage(pid))
                most = std::max(most.value_or(0), usage->grant_bytes);
        return most;
    }
    uint64_t sum = 0;
    for (int pid : pids) {
        auto bytes = process_bytes_on_gpu(*request.nvml, request.gpu, pid);
        if (!bytes)
            return std::nullopt;
        sum += *bytes;
    }
    return sum > request.overhead_bytes ? sum - request.overhead_bytes : 0;
}

} // namespace berth
