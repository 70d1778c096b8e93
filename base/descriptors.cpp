// SPDX-License-Identifier: Apache-2.0
#include "base/descriptors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/resource.h>

namespace berth {

namespace {

constexpr uint64_t kReserveMax = 128;
constexpr uint64_t kTableMax = 65'536;
// Below what select() can wait for (FD_SETSIZE), and what a process may have that nobody gave more.
constexpr int kHighNumber = 960;

uint64_t reserve_of(uint64_t limit, DescriptorUse use) {
    uint64_t reserve = std::min(kReserveMax, limit / 4);
    switch (use) {
    case DescriptorUse::kNewcomer:
        return reserve;
    case DescriptorUse::kOperator:
        return reserve / 2;
    case DescriptorUse::kOwn:
        return reserve / 4;
    }
    return reserve;
}

} // namespace

Result<DescriptorLimit> raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return fail_errno("getrlimit(RLIMIT_NOFILE)");
    DescriptorLimit raised{limit.rlim_cur, limit.rlim_cur, limit.rlim_max};
    if (limit.rlim_cur == limit.rlim_max)
        return raised;
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return fail_errno(
            fmt::format("raising RLIMIT_NOFILE from {} to {}", raised.before, raised.hard));
    raised.soft = raised.hard;
    return raised;
}

void make_descriptor_table() {
    const uint64_t most = std::min(descriptor_limit(), kTableMax);
    const UniqueFd any(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (any && most > 0) // the lowest that is free from the last one on
        const UniqueFd last(::fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(most - 1)));
}

UniqueFd to_high_number(UniqueFd fd) {
    if (fd.get() >= kHighNumber)
        return fd;
    UniqueFd high(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kHighNumber));
    return high ? std::move(high) : std::move(fd);
}

uint64_t descriptor_limit() {
    rlimit limit{};
    return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

bool leaves_too_few(int fd, DescriptorUse use) {
    uint64_t limit = descriptor_limit();
    return fd >= 0 && static_cast<uint64_t>(fd) + reserve_of(limit, use) >= limit;
}

Error too_many_descriptors(std::string_view what) {
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("{}: nearly all of the {} descriptors that this process may have are "
                             "open. Try again when engines have left, or raise its limit "
                             "(LimitNOFILE= of the unit, ulimit -Hn) and start it again: nothing "
                             "is lost by that",
                             what, descriptor_limit()),
                 "TooManyDescriptors", EMFILE};
}

bool is_descriptor_shortage(const Error& error) {
    return error.source == EMFILE || error.source == ENFILE;
}

void SpareDescriptor::take() noexcept {
    if (!fd_)
        fd_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

} // namespace berth
