// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <sys/socket.h>

// What a server asks of its sockets. Inside base/http only.
namespace berth::http {

// AF_INET, AF_INET6, AF_UNIX.
Result<int> family_of(int socket);
// The other end of a TCP connection, "127.0.0.1:40312"; empty when it cannot be told.
std::string numeric_address(int socket);
bool is_loopback(const sockaddr* address);
uint16_t port_of(const sockaddr* address);

} // namespace berth::http
