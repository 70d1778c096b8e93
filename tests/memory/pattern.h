// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hash.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace berth::test {

// Bytes that repeat nowhere near: a misplaced block shows.
inline std::vector<std::byte> pattern_of(size_t bytes, uint64_t seed) {
    std::vector<std::byte> out(bytes);
    uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(out.data() + i, &state, 8);
    }
    return out;
}

inline std::string hash_of(std::span<const std::byte> bytes) {
    return sha256_hex(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

} // namespace berth::test
