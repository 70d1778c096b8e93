// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/queue.h"

namespace berth::engine::fast {

const std::array<std::string_view, kKernels> kKernelNames = {
    "berth_embed",
    "berth_norm",
    "berth_largest",
    "berth_silu_times",
    "berth_gather",
    "berth_dequantise",
    "berth_read_all",
    "berth_rope_store_64",
    "berth_rope_store_128",
    "berth_attend_merge_64",
    "berth_attend_merge_128",
    "berth_attend_64_1",
    "berth_attend_64_2",
    "berth_attend_64_4",
    "berth_attend_128_1",
    "berth_attend_128_2",
    "berth_attend_128_4",
    "berth_attend_all_64_1",
    "berth_attend_all_64_2",
    "berth_attend_all_64_4",
    "berth_attend_all_128_1",
    "berth_attend_all_128_2",
    "berth_attend_all_128_4",
    "berth_matrix_bf16_8_1x8",
    "berth_matrix_bf16_8_2x4",
    "berth_matrix_bf16_16_1x8",
    "berth_matrix_bf16_16_2x4",
    "berth_matrix_bf16_32_1x8",
    "berth_matrix_bf16_32_2x4",
    "berth_matrix_bf16_pair_8_1x8",
    "berth_matrix_bf16_pair_8_2x4",
    "berth_matrix_bf16_pair_16_1x8",
    "berth_matrix_bf16_pair_16_2x4",
    "berth_matrix_bf16_pair_32_1x8",
    "berth_matrix_bf16_pair_32_2x4",
    "berth_matrix_fp8_8_1x8",
    "berth_matrix_fp8_8_2x4",
    "berth_matrix_fp8_16_1x8",
    "berth_matrix_fp8_16_2x4",
    "berth_matrix_fp8_32_1x8",
    "berth_matrix_fp8_32_2x4",
    "berth_matrix_fp8_pair_8_1x8",
    "berth_matrix_fp8_pair_8_2x4",
    "berth_matrix_fp8_pair_16_1x8",
    "berth_matrix_fp8_pair_16_2x4",
    "berth_matrix_fp8_pair_32_1x8",
    "berth_matrix_fp8_pair_32_2x4",
    "berth_stream_bf16_8_few",
    "berth_stream_bf16_8_many",
    "berth_stream_bf16_16_few",
    "berth_stream_bf16_16_many",
    "berth_stream_bf16_32_few",
    "berth_stream_bf16_32_many",
    "berth_stream_bf16_pair_8_few",
    "berth_stream_bf16_pair_8_many",
    "berth_stream_bf16_pair_16_few",
    "berth_stream_bf16_pair_16_many",
    "berth_stream_bf16_pair_32_few",
    "berth_stream_bf16_pair_32_many",
    "berth_stream_fp8_8_few",
    "berth_stream_fp8_8_many",
    "berth_stream_fp8_16_few",
    "berth_stream_fp8_16_many",
    "berth_stream_fp8_32_few",
    "berth_stream_fp8_32_many",
    "berth_stream_fp8_pair_8_few",
    "berth_stream_fp8_pair_8_many",
    "berth_stream_fp8_pair_16_few",
    "berth_stream_fp8_pair_16_many",
    "berth_stream_fp8_pair_32_few",
    "berth_stream_fp8_pair_32_many",
};

namespace {

uint32_t variant_of(const MatrixShape& shape) {
    const uint32_t width = shape.columns <= 8 ? 0 : shape.columns <= 16 ? 1 : 2;
    return (shape.fp8 ? 12U : 0U) + (shape.pair ? 6U : 0U) + width * 2 + (shape.row_warps - 1);
}

} // namespace

Kernel matrix_kernel(const MatrixShape& shape) {
    return static_cast<Kernel>(static_cast<uint32_t>(Kernel::kMatrix) + variant_of(shape));
}

Kernel stream_kernel(const MatrixShape& shape) {
    return static_cast<Kernel>(kFirstStream + variant_of(shape));
}

} // namespace berth::engine::fast
