// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>
#include <sys/un.h>

namespace berth {

// The address of a Unix socket's file. InvalidArgument when the path is empty or longer than such
// an address holds (107 bytes).
Result<sockaddr_un> unix_address(const std::string& path);
// Removes a socket's file, if there is one. AlreadyExists: something else lies there, and stays.
Status remove_socket(const std::string& path);

} // namespace berth
