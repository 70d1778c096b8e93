// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace berth {

// The error of a set that is not what its publisher had declared.
Status malformed(std::string message);

// Of a host segment the kernel says whether it is what it must be: its size, and its seals.
Status check_segment(const UniqueFd& fd, size_t index, uint64_t bytes);

} // namespace berth
