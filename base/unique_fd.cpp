// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {

void UniqueFd::reset(int fd) noexcept {
    if (fd_ >= 0 && fd_ != fd)
        ::close(fd_);
    fd_ = fd;
}

Result<UniqueFd> UniqueFd::duplicate() const {
    int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return fail_errno(fmt::format("duplicating descriptor {}", fd_));
    return UniqueFd(copy);
}

Result<UniqueFd> UniqueFd::reopen(int flags) const {
    int fd = ::open(fmt::format("/proc/self/fd/{}", fd_).c_str(), flags | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(fmt::format("reopening descriptor {}", fd_));
    return UniqueFd(fd);
}

Result<std::string> read_file(const std::string& path, size_t bytes_max) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd)
        return fail_errno(path);
    std::string text;
    for (;;) {
        char chunk[65536];
        ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(path);
        if (got == 0)
            return text;
        text.append(chunk, static_cast<size_t>(got));
        if (text.size() > bytes_max)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("{}: larger than the {} bytes allowed here", path, bytes_max));
    }
}

Status write_file_atomic(const std::string& path, std::string_view bytes, int mode) {
    std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    if (!fd)
        return fail_errno(temporary);
    while (!bytes.empty()) {
        ssize_t put = ::write(fd.get(), bytes.data(), bytes.size());
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0) {
            int error_number = errno;
            ::unlink(temporary.c_str());
            return fail_errno(temporary, error_number);
        }
        bytes.remove_prefix(static_cast<size_t>(put));
    }
    if (::fsync(fd.get()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
        int error_number = errno;
        ::unlink(temporary.c_str());
        return fail_errno(path, error_number);
    }
    return {};
}

Status make_directories(const std::string& path, int mode) {
    std::error_code error;
    bool made = std::filesystem::create_directories(path, error);
    if (error)
        return fail_errno(path, error.value());
    if (made && ::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0)
        return fail_errno(path);
    return {};
}

} // namespace berth
