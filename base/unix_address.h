// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>
#include <sys/un.h>

namespace berth {

// The address of a Unix socket's file. InvalidArgument when the path is empty or longer than such
// an address holds (107 bytes).
Result<sockaddr_un> unix_address(const std::string& path);

} // namespace berth
