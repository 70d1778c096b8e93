// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/proc.h"

#include "base/hash.h"
#include "base/number.h"
#include "base/unique_fd.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace berth::proc {

std::vector<int> numbers_in(const std::string& folder) {
    std::vector<int> found;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
        if (auto value = number_in<int>(entry->path().filename().native()))
            found.push_back(*value);
    return found;
}

std::optional<std::string> environment(int pid, size_t bytes_max) {
    auto text = read_file(fmt::format("/proc/{}/environ", pid), bytes_max);
    return text ? std::optional(std::move(*text)) : std::nullopt;
}

std::optional<std::string> variable(const std::string& environment, const std::string& name) {
    const std::string prefix = name + "=";
    for (size_t begin = 0; begin < environment.size();) {
        const size_t end = std::min(environment.find('\0', begin), environment.size());
        const std::string_view one(environment.data() + begin, end - begin);
        if (one.starts_with(prefix))
            return std::string(one.substr(prefix.size()));
        begin = end + 1;
    }
    return std::nullopt;
}

bool has_token(int pid, const std::string& token_sha256, size_t environment_bytes_max) {
    if (token_sha256.empty())
        return false;
    const auto its = environment(pid, environment_bytes_max);
    const auto token = its ? variable(*its, "BERTH_TOKEN") : std::nullopt;
    return token && sha256_hex(*token) == token_sha256;
}

} // namespace berth::proc
