// SPDX-License-Identifier: Apache-2.0
#include "base/inherited.h"

#include "base/number.h"
#include "base/process.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <string_view>
#include <unistd.h>

namespace berth {

namespace {

constexpr int kCountMax = 64;
constexpr const char* kCount = "LISTEN_FDS";
constexpr const char* kFor = "LISTEN_PID";
constexpr const char* kNames = "LISTEN_FDNAMES";

std::string_view variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

} // namespace

std::vector<std::string> listen_names(std::string_view text) {
    std::vector<std::string> names;
    while (!text.empty()) {
        const size_t colon = text.find(':');
        names.emplace_back(text.substr(0, colon));
        text.remove_prefix(colon == std::string_view::npos ? text.size() : colon + 1);
    }
    return names;
}

bool inherits_descriptors() {
    return !variable(kCount).empty() &&
           number_in<int>(variable(kFor)) == static_cast<int>(::getpid());
}

Result<std::vector<InheritedFd>> take_inherited_descriptors() {
    std::vector<InheritedFd> taken;
    if (!inherits_descriptors())
        return taken;
    const std::optional<int> count = number_in<int>(variable(kCount));
    if (!count || *count < 0 || *count > kCountMax)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} is '{}'; expected a number up to {}", kCount, variable(kCount),
                                kCountMax));
    const std::vector<std::string> names = listen_names(variable(kNames));
    for (int fd = kListenFdsStart; fd < kListenFdsStart + *count; ++fd) {
        const auto at = static_cast<size_t>(fd - kListenFdsStart);
        if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
            return fail(
                ErrorCode::kFailedPrecondition,
                fmt::format("{} announces {} descriptors, but {} is not open", kCount, *count, fd));
        taken.push_back({at < names.size() ? names[at] : "unknown", UniqueFd(fd)});
    }
    for (const char* name : {kCount, kFor, kNames})
        ::unsetenv(name);
    return taken;
}

} // namespace berth
