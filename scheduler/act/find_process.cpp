// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/find_process.h"

#include "base/hash.h"
#include "base/unique_fd.h"

#include <charconv>
#include <filesystem>
#include <string_view>
#include <unistd.h>

namespace berth {

namespace {

constexpr std::string_view kName = "BERTH_TOKEN=";
constexpr size_t kEnvironmentBytesMax = size_t{4} << 20;

bool has_token(const std::string& environment, const std::string& token_sha256) {
    for (size_t at = 0; at < environment.size();) {
        const size_t end = std::min(environment.find('\0', at), environment.size());
        const std::string_view one(environment.data() + at, end - at);
        if (one.starts_with(kName))
            return sha256_hex(std::string(one.substr(kName.size()))) == token_sha256;
        at = end + 1;
    }
    return false;
}

// Calls `look` with the pid and the folder of each process but this one, until it says true.
template <typename Look>
bool any_process(Look look) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
        const std::string name = entry.path().filename().string();
        int pid = 0;
        const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), pid);
        if (failed == std::errc() && end == name.data() + name.size() && pid != ::getpid() &&
            look(pid, entry.path().string()))
            return true;
    }
    return false;
}

} // namespace

std::optional<ProcessId> find_process_by_token(const std::string& token_sha256) {
    if (token_sha256.empty())
        return std::nullopt;
    std::optional<ProcessId> oldest; // the leader; its children have the same environment
    any_process([&](int pid, const std::string& folder) {
        auto environment = read_file(folder + "/environ", kEnvironmentBytesMax);
        if (!environment || !has_token(*environment, token_sha256))
            return false;
        auto found = process_id(pid);
        if (found && (!oldest || found->start_ticks < oldest->start_ticks ||
                      (found->start_ticks == oldest->start_ticks && found->pid < oldest->pid)))
            oldest = *found;
        return false;
    });
    return oldest;
}

// Until it does, it has the words that berthd was started with.
bool has_unborn_sibling() {
    const auto own = read_file("/proc/self/cmdline", kEnvironmentBytesMax);
    return own && any_process([&](int pid, const std::string& folder) {
               return process_id(pid) &&
                      read_file(folder + "/cmdline", kEnvironmentBytesMax).value_or("") == *own;
           });
}

} // namespace berth
