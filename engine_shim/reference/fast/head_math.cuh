// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernel_math.cuh"

namespace berth::engine::fast {

// One head of a row by one warp: queries first, then keys, then values; with bias, norm and
// rotation. A lane gets places lane, lane + 32, ..., so that both of a rotated pair are its own.
template <int kDim>
__device__ void head_of(const HeadParams& p, uint32_t row, uint32_t index, float (&x)[kDim / 32]) {
    constexpr int kEach = kDim / 32;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t kind = index < p.heads ? 0 : index < p.heads + p.kv_heads ? 1 : 2;
    const uint32_t head = kind == 0   ? index
                          : kind == 1 ? index - p.heads
                                      : index - p.heads - p.kv_heads;
    const float* from =
        p.qkv + (static_cast<uint64_t>(row) * (p.heads + 2 * p.kv_heads) + index) * kDim;
    float squares = 0;
#pragma unroll
    for (int each = 0; each < kEach; ++each)
        x[each] = from[lane + 32 * static_cast<uint32_t>(each)];
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
        const uint32_t place = lane + 32 * static_cast<uint32_t>(each);
        if (p.bias[kind] != nullptr)
            x[each] += from_bf16(p.bias[kind][head * kDim + place]);
        squares = fmaf(x[each], x[each], squares);
    }
    const Bf16* weight = kind == 0 ? p.q_norm : kind == 1 ? p.k_norm : nullptr;
    if (weight != nullptr) {
        const float factor =
            inverse_root(sum_of_warp(squares) / static_cast<float>(kDim) + p.epsilon);
#pragma unroll
        for (int each = 0; each < kEach; ++each)
            x[each] *= factor * from_bf16(weight[lane + 32 * static_cast<uint32_t>(each)]);
    }
    if (kind == 2)
        return;
    const float* rope = p.rope + static_cast<uint64_t>(row) * kDim;
#pragma unroll
    for (int each = 0; each < kEach / 2; ++each) {
        const uint32_t pair = lane + 32 * static_cast<uint32_t>(each);
        const float cosine = rope[2 * pair];
        const float sine = rope[2 * pair + 1];
        const float first = x[each];
        const float second = x[each + kEach / 2];
        x[each] = first * cosine - second * sine;
        x[each + kEach / 2] = second * cosine + first * sine;
    }
}

} // namespace berth::engine::fast
