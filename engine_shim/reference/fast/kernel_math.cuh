// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __CUDACC__
#include "gpu_intrinsics.cuh"
#endif
#include "kernel_params.h"

// Small pieces that all kernels share. -fmad=false is set for the whole project's kernels, so
// products that may be fused say so.
namespace berth::engine::fast {

constexpr float kMinusInfinity = -__builtin_huge_valf();

__device__ inline float low_of(uint32_t pair) {
    return as_float(pair << 16);
}
__device__ inline float high_of(uint32_t pair) {
    return as_float(pair & 0xffff0000U);
}
__device__ inline float from_bf16(Bf16 bits) {
    return as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ inline Bf16 to_bf16(float value) {
    return static_cast<Bf16>(pack_bf16(value, 0.0F) & 0xffffU);
}

__device__ inline float sum_of_warp(float mine) {
    for (int mask = 16; mask > 0; mask >>= 1)
        mine += shuffle_xor(mine, mask);
    return mine;
}

// The sum over a group of `kWarps` warps, for all of them. `shared` has a place for each warp.
template <int kWarps>
__device__ inline float sum_of_group(float mine, float* shared) {
    mine = sum_of_warp(mine);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = mine;
    barrier();
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp)
        sum += shared[warp];
    return sum;
}

__device__ inline const Bf16* page_of(const Pages& pages, int32_t pitch, uint32_t sequence,
                                      uint32_t token, uint32_t plane) {
    const int32_t block =
        pages.tables[static_cast<uint64_t>(sequence) * static_cast<uint32_t>(pitch) +
                     token / pages.block_tokens];
    return pages.memory + static_cast<uint64_t>(block) * pages.block_stride +
           plane * pages.plane_stride;
}

} // namespace berth::engine::fast
