// SPDX-License-Identifier: Apache-2.0
#include "cache/load/convert.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace berth {

namespace {

float from_f32(uint32_t bits) {
    return std::bit_cast<float>(bits);
}

float from_bf16(uint16_t bits) {
    return std::bit_cast<float>(uint32_t{bits} << 16);
}

float from_f16(uint16_t bits) {
    uint32_t sign = uint32_t{bits} >> 15 << 31;
    uint32_t exponent = bits >> 10 & 0x1fU;
    uint32_t mantissa = bits & 0x3ffU;
    if (exponent == 0) // zero, or a subnormal: the mantissa counts steps of 2^-24
        return std::bit_cast<float>(
            sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24F));
    uint32_t wide_exponent = exponent == 0x1f ? 0xffU : exponent + 112;
    return std::bit_cast<float>(sign | wide_exponent << 23 | mantissa << 13);
}

uint32_t to_f32(float value) {
    return std::bit_cast<uint32_t>(value);
}

uint16_t to_bf16(float value) {
    auto bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) // rounding could turn a NaN into infinity
        return static_cast<uint16_t>(bits >> 16 | 0x40U);
    bits += 0x7fffU + (bits >> 16 & 1U);
    return static_cast<uint16_t>(bits >> 16);
}

template <typename From, typename To, float (*Decode)(From), To (*Encode)(float)>
void convert_all(std::span<const std::byte> from, std::span<std::byte> to) {
    size_t count = from.size() / sizeof(From);
    for (size_t index = 0; index < count; ++index) {
        From in;
        std::memcpy(&in, from.data() + index * sizeof(From), sizeof in);
        To out = Encode(Decode(in));
        std::memcpy(to.data() + index * sizeof(To), &out, sizeof out);
    }
}

} // namespace

Status convert(DType from_dtype, std::span<const std::byte> from, DType to_dtype,
               std::span<std::byte> to) {
    using enum DType;
    if (to_dtype == kF32 && from_dtype == kBF16)
        convert_all<uint16_t, uint32_t, from_bf16, to_f32>(from, to);
    else if (to_dtype == kF32 && from_dtype == kF16)
        convert_all<uint16_t, uint32_t, from_f16, to_f32>(from, to);
    else if (to_dtype == kBF16 && from_dtype == kF32)
        convert_all<uint32_t, uint16_t, from_f32, to_bf16>(from, to);
    else if (to_dtype == kBF16 && from_dtype == kF16)
        convert_all<uint16_t, uint16_t, from_f16, to_bf16>(from, to);
    else
        return fail(
            ErrorCode::kUnsupported,
            fmt::format("cannot cast {} to {}", to_string(from_dtype), to_string(to_dtype)));
    return {};
}

} // namespace berth
