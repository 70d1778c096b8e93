// SPDX-License-Identifier: Apache-2.0
#include "scheduler/main/lock_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr int kTryMs = 2;
constexpr int kTries = 200;

} // namespace

Result<LockFile> LockFile::take(const std::string& path) {
    LockFile lock;
    lock.fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
    // On a disk that cannot be written an earlier one's file is locked as well.
    const bool read_only = !lock.fd_ && (errno == EROFS || errno == EACCES || errno == ENOSPC);
    if (read_only)
        lock.fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!lock.fd_)
        return fail_errno(path);
    // One that was killed a moment ago holds the lock until the kernel has taken it apart.
    int error = 0;
    for (int tries = 0; tries <= kTries; ++tries) {
        error = ::flock(lock.fd_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (error != EWOULDBLOCK)
            break;
        ::poll(nullptr, 0, kTryMs);
    }
    if (error != 0) {
        if (error != EWOULDBLOCK)
            return fail_errno(fmt::format("locking {}", path), error);
        std::string pid = read_file(path, 64).value_or("");
        while (!pid.empty() && pid.back() == '\n')
            pid.pop_back();
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("berthd runs already with this state folder, as pid {} (lock file "
                                "{}): stop it first, or give this node another spec.stateDir",
                                pid.empty() ? "unknown" : pid, path),
                    "AlreadyRunning");
    }
    // The pid is for people; on a full disk the lock holds without it.
    std::string text = fmt::format("{}\n", ::getpid());
    if (!read_only &&
        (::ftruncate(lock.fd_.get(), 0) != 0 || ::pwrite(lock.fd_.get(), text.data(), text.size(),
                                                         0) != static_cast<ssize_t>(text.size())) &&
        errno != ENOSPC && errno != EDQUOT)
        return fail_errno(fmt::format("writing {}", path));
    return lock;
}

} // namespace berth
