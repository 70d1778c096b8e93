// SPDX-License-Identifier: Apache-2.0
#include "base/unix_address.h"

#include <fmt/format.h>

#include <cstring>
#include <sys/socket.h>

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

} // namespace berth
