// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstdint>
#include <string>

namespace berth {

// Sockets that are bound and listen, with the longest queue that the system allows. AlreadyExists
// when somebody else listens there.

// Port 0: any; socket_endpoint() tells which. Names are looked up, which may block.
Result<UniqueFd> listen_on_tcp(const std::string& host, uint16_t port);
// A file there on which nobody listens is replaced.
Result<UniqueFd> listen_on_unix(const std::string& path, int mode);

// Where it listens, for people and clients: "http://127.0.0.1:8000", "http://[::1]:8000",
// "unix:/PATH".
Result<std::string> socket_endpoint(int fd);

} // namespace berth
