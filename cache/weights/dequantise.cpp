// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/fp8.h"
#include "cache/weights/quantise.h"

#include <fmt/format.h>

#include <cstring>

namespace berth {

namespace {

uint16_t bf16_of(float value) {
    auto bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) // a NaN stays one
        return static_cast<uint16_t>(bits >> 16 | 0x40U);
    return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

} // namespace

Status dequantise_rows(const std::byte* fp8, const float* scales, uint64_t row_count,
                       uint64_t columns, DType to, std::byte* rows_out, uint64_t pitch_bytes) {
    static constexpr std::array<float, 256> kValues = fp8_table();
    if (to != DType::kF32 && to != DType::kBF16)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("cannot bring block-wise FP8 back to {}: expected F32 or BF16",
                                to_string(to)));
    for (uint64_t row = 0; row < row_count; ++row) {
        const float* of_row = scales + row / kQuantBlock * quant_blocks(columns);
        const std::byte* from = fp8 + row * columns;
        std::byte* into = rows_out + row * pitch_bytes;
        for (uint64_t column = 0; column < columns; ++column) {
            float value =
                kValues[static_cast<uint8_t>(from[column])] * of_row[column / kQuantBlock];
            if (to == DType::kF32) {
                std::memcpy(into + column * sizeof value, &value, sizeof value);
            } else {
                uint16_t half = bf16_of(value);
                std::memcpy(into + column * sizeof half, &half, sizeof half);
            }
        }
    }
    return {};
}

} // namespace berth
