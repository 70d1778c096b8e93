// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/dtype.h"
#include "cache/checkpoint/quantisation.h"

#include <cstddef>
#include <cstdint>

// Block-wise FP8 as DeepSeek-V3 checkpoints have it: a weight [rows, columns] becomes F8_E4M3 of
// the same shape and `weight_scale_inv`, F32 [ceil(rows / 128), ceil(columns / 128)], one scale for
// each block of 128 x 128; blocks at the right and lower edge may be smaller. value = fp8 * scale.
//
// The arithmetic, in single precision, each step rounded to nearest even, subnormals kept; the CPU
// and the device kernel give the same bits:
//   amax  = the largest |x| of the block's finite elements
//   amax == 0:  scale = 1, all elements are zeros that keep their sign
//   otherwise:  amax = max(amax, 2^-117), so that scale and its reciprocal are normal numbers;
//               scale = amax / 448;  q = e4m3(x * (448 / amax)), saturating at +-448
// A NaN becomes NaN (0x7f) and an infinity +-448; both are counted, for the caller to refuse the
// tensor by its name.
namespace berth {

inline uint64_t quant_blocks(uint64_t elements) {
    return (elements + kQuantBlock - 1) / kQuantBlock;
}
inline uint64_t scale_count(uint64_t rows, uint64_t columns) {
    return quant_blocks(rows) * quant_blocks(columns);
}
// BF16, F16 and F32.
bool can_quantise(DType from);

// The conditions of quantise_rows on its input, in words.
Status check_quantise(DType from, const std::byte* rows, uint64_t pitch_bytes, uint64_t row_count,
                      uint64_t columns);

// Quantises a band of rows that starts at a multiple of 128 and ends at one or at the tensor's end.
// Rows lie `pitch_bytes` apart, a multiple of the element's size, as is their address; `fp8_out`
// gets row_count * columns bytes without gaps, `scales_out` scale_count(row_count, columns) floats.
// Returns how many elements are NaN or infinite. Pure, on the calling thread, at a few GB/s.
Result<uint64_t> quantise_rows(DType from, const std::byte* rows, uint64_t pitch_bytes,
                               uint64_t row_count, uint64_t columns, std::byte* fp8_out,
                               float* scales_out);

// The way back for a band cut in the same way: fp8 * scale as F32, or rounded from it to BF16.
Status dequantise_rows(const std::byte* fp8, const float* scales, uint64_t row_count,
                       uint64_t columns, DType to, std::byte* rows_out, uint64_t pitch_bytes);

// What `quantise_rows` uses on this machine: "avx512", "avx2" or "portable".
const char* quantise_variant();

} // namespace berth
