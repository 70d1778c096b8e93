// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/find_process.h"

#include "base/unique_fd.h"
#include "scheduler/act/proc.h"

#include <fmt/format.h>

#include <tuple>
#include <unistd.h>

namespace berth {

namespace {

constexpr size_t kBytesMax = size_t{4} << 20; // of an environment, of a command line

} // namespace

std::optional<ProcessId> find_process_by_token(const std::string& token_sha256) {
    std::optional<ProcessId> oldest; // the leader; its children have the same environment
    for (int pid : proc::numbers_in("/proc")) {
        if (pid == ::getpid() || !proc::has_token(pid, token_sha256, kBytesMax))
            continue;
        auto found = process_id(pid);
        if (found && (!oldest || std::tie(found->start_ticks, found->pid) <
                                     std::tie(oldest->start_ticks, oldest->pid)))
            oldest = *found;
    }
    return oldest;
}

// Until it does, it has the words that berthd was started with.
bool has_unborn_sibling() {
    const auto own = read_file("/proc/self/cmdline", kBytesMax);
    if (!own)
        return false;
    for (int pid : proc::numbers_in("/proc"))
        if (pid != ::getpid() && process_id(pid) &&
            read_file(fmt::format("/proc/{}/cmdline", pid), kBytesMax).value_or("") == *own)
            return true;
    return false;
}

} // namespace berth
