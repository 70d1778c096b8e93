// SPDX-License-Identifier: Apache-2.0
#include "base/unix_address.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {

Result<sockaddr_un> unix_address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("socket path '{}' has {} bytes; a Unix socket's path may have 1 to "
                                "{}: choose a shorter folder",
                                path, path.size(), sizeof address.sun_path - 1));
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
}

Status remove_socket(const std::string& path) {
    struct stat facts{};
    if (::lstat(path.c_str(), &facts) != 0)
        return errno == ENOENT ? Status() : fail_errno(path);
    if (!S_ISSOCK(facts.st_mode))
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("{} is there and no socket: it stays; choose another path, or "
                                "remove it",
                                path),
                    "AddressInUse");
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
        return fail_errno(fmt::format("removing {}", path));
    return {};
}

} // namespace berth
