// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

// F8_E4M3 as torch's float8_e4m3fn: one sign, four exponent bits (bias 7), three of mantissa; no
// infinities, NaN is 0x7f and 0xff.
namespace berth {

inline constexpr float kFp8Max = 448.0F;
inline constexpr uint8_t kFp8Nan = 0x7f;

constexpr float float_of_fp8(uint8_t code) {
    uint32_t exponent = code >> 3 & 0xfU;
    uint32_t mantissa = code & 0x7U;
    if (exponent == 0xf && mantissa == 0x7)
        return std::numeric_limits<float>::quiet_NaN();
    float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9F
                                    : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
}

constexpr std::array<float, 256> fp8_table() {
    std::array<float, 256> table{};
    for (uint32_t code = 0; code < table.size(); ++code)
        table[code] = float_of_fp8(static_cast<uint8_t>(code));
    return table;
}

} // namespace berth
