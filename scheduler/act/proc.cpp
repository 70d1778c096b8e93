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

std::optional<std::string> variable(int pid, const std::string& name, size_t bytes_max) {
    const std::string prefix = name + "=";
    auto text = read_file(fmt::format("/proc/{}/environ", pid), bytes_max);
    if (!text)
        return std::nullopt;
    for (size_t begin = 0; begin < text->size();) {
        const size_t end = std::min(text->find('\0', begin), text->size());
        const std::string_view one(text->data() + begin, end - begin);
        if (one.starts_with(prefix))
            return std::string(one.substr(prefix.size()));
        begin = end + 1;
    }
    return std::nullopt;
}

bool has_token(int pid, const std::string& token_sha256, size_t environment_bytes_max) {
    if (token_sha256.empty())
        return false;
    const auto token = variable(pid, "BERTH_TOKEN", environment_bytes_max);
    return token && sha256_hex(*token) == token_sha256;
}

} // namespace berth::proc
