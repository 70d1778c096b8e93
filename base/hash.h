// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace berth {

// SHA-256 as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);
// `bytes` random bytes from the system, as hexadecimal digits.
std::string random_hex(size_t bytes);

} // namespace berth
