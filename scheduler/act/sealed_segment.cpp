// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/sealed_segment.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace berth {

namespace {

constexpr int kSegmentSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;

} // namespace

Status malformed(std::string message) {
    return fail(ErrorCode::kCorrupt, std::move(message), "SealedOther");
}

Status check_segment(const UniqueFd& fd, size_t index, uint64_t bytes) {
    struct stat facts{};
    if (::fstat(fd.get(), &facts) != 0)
        return malformed(fmt::format("segment {}: {}", index, std::strerror(errno)));
    if (static_cast<uint64_t>(facts.st_size) != bytes)
        return malformed(
            fmt::format("segment {} has {} bytes, {} were declared", index, facts.st_size, bytes));
    int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kSegmentSeals) != kSegmentSeals)
        return malformed(fmt::format("segment {} is not sealed against writing, growing and "
                                     "shrinking",
                                     index));
    return {};
}

} // namespace berth
