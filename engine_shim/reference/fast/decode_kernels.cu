// SPDX-License-Identifier: Apache-2.0
// The entry points of the engine's kernels. Compiled to a fatbin that is embedded into the engine
// and loaded through the driver; nothing here runs on the host.
#include "attend_all.cuh"
#include "matrix_kernel.cuh"
#include "small_kernels.cuh"
#include "stream_kernel.cuh"

using namespace berth::engine::fast;

#define BERTH_MATRIX(name, weight, columns, matrices, rows, slices)                                \
    extern "C" __global__ void __launch_bounds__(32 * (rows) * (slices))                           \
        berth_matrix_##name(const __grid_constant__ MatrixParams p) {                              \
        using Kernel = MatrixKernel<weight, columns, matrices, rows, slices>;                      \
        __shared__ Kernel::Shared shared;                                                          \
        Kernel::run(p, shared);                                                                    \
    }

// Rows of x that one group takes, plain or pair, warps along rows x along k.
#define BERTH_MATRICES(kind, weight)                                                               \
    BERTH_MATRIX(kind##_8_1x8, weight, 1, 1, 1, 8)                                                 \
    BERTH_MATRIX(kind##_8_2x4, weight, 1, 1, 2, 4)                                                 \
    BERTH_MATRIX(kind##_16_1x8, weight, 2, 1, 1, 8)                                                \
    BERTH_MATRIX(kind##_16_2x4, weight, 2, 1, 2, 4)                                                \
    BERTH_MATRIX(kind##_32_1x8, weight, 4, 1, 1, 8)                                                \
    BERTH_MATRIX(kind##_32_2x4, weight, 4, 1, 2, 4)                                                \
    BERTH_MATRIX(kind##_pair_8_1x8, weight, 1, 2, 1, 8)                                            \
    BERTH_MATRIX(kind##_pair_8_2x4, weight, 1, 2, 2, 4)                                            \
    BERTH_MATRIX(kind##_pair_16_1x8, weight, 2, 2, 1, 8)                                           \
    BERTH_MATRIX(kind##_pair_16_2x4, weight, 2, 2, 2, 4)                                           \
    BERTH_MATRIX(kind##_pair_32_1x8, weight, 4, 2, 1, 8)                                           \
    BERTH_MATRIX(kind##_pair_32_2x4, weight, 4, 2, 2, 4)

BERTH_MATRICES(bf16, Bf16Weight)
BERTH_MATRICES(fp8, Fp8Weight)

#define BERTH_STREAM(name, weight, columns, matrices, tiles)                                       \
    extern "C" __global__ void __launch_bounds__(kStreamThreads, 1)                                \
        berth_stream_##name(const __grid_constant__ MatrixParams p) {                              \
        using Kernel = StreamKernel<weight, columns, matrices, tiles>;                             \
        extern __shared__ uint4 shared[];                                                          \
        Kernel::run(p, *reinterpret_cast<Kernel::Shared*>(shared));                                \
    }

// Rows of x, plain or pair, few or many tiles of a pass.
#define BERTH_STREAMS(kind, weight, many, pairs)                                                   \
    BERTH_STREAM(kind##_8_few, weight, 1, 1, 2)                                                    \
    BERTH_STREAM(kind##_8_many, weight, 1, 1, many)                                                \
    BERTH_STREAM(kind##_16_few, weight, 2, 1, 2)                                                   \
    BERTH_STREAM(kind##_16_many, weight, 2, 1, many)                                               \
    BERTH_STREAM(kind##_32_few, weight, 4, 1, 2)                                                   \
    BERTH_STREAM(kind##_32_many, weight, 4, 1, many)                                               \
    BERTH_STREAM(kind##_pair_8_few, weight, 1, 2, 1)                                               \
    BERTH_STREAM(kind##_pair_8_many, weight, 1, 2, pairs)                                          \
    BERTH_STREAM(kind##_pair_16_few, weight, 2, 2, 1)                                              \
    BERTH_STREAM(kind##_pair_16_many, weight, 2, 2, pairs)                                         \
    BERTH_STREAM(kind##_pair_32_few, weight, 4, 2, 1)                                              \
    BERTH_STREAM(kind##_pair_32_many, weight, 4, 2, pairs)

BERTH_STREAMS(bf16, Bf16Weight, 3, 2)
BERTH_STREAMS(fp8, Fp8Weight, 2, 1)

#define BERTH_ATTEND(dim, heads)                                                                   \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        berth_attend_##dim##_##heads(const __grid_constant__ AttendParams p) {                     \
        using Kernel = AttendKernel<dim, heads>;                                                   \
        __shared__ Kernel::Shared shared;                                                          \
        Kernel::run(p, shared);                                                                    \
    }

BERTH_ATTEND(64, 1)
BERTH_ATTEND(64, 2)
BERTH_ATTEND(64, 4)
BERTH_ATTEND(128, 1)
BERTH_ATTEND(128, 2)
BERTH_ATTEND(128, 4)

#define BERTH_ATTEND_ALL(dim, heads)                                                               \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        berth_attend_all_##dim##_##heads(const __grid_constant__ AttendParams p) {                 \
        using Kernel = AttendAll<dim, heads>;                                                      \
        __shared__ Kernel::Shared shared;                                                          \
        Kernel::run(p, shared);                                                                    \
    }

BERTH_ATTEND_ALL(64, 1)
BERTH_ATTEND_ALL(64, 2)
BERTH_ATTEND_ALL(64, 4)
BERTH_ATTEND_ALL(128, 1)
BERTH_ATTEND_ALL(128, 2)
BERTH_ATTEND_ALL(128, 4)

#define BERTH_MERGE(dim)                                                                           \
    extern "C" __global__ void __launch_bounds__(dim)                                              \
        berth_attend_merge_##dim(const __grid_constant__ AttendParams p) {                         \
        __shared__ MergeShared shared;                                                             \
        attend_merge<dim>(p, shared);                                                              \
    }

BERTH_MERGE(64)
BERTH_MERGE(128)

#define BERTH_PLAIN(name, params, call)                                                            \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ params p) {     \
        call;                                                                                      \
    }

BERTH_PLAIN(berth_rope_store_64, RopeParams, rope_store<64>(p))
BERTH_PLAIN(berth_rope_store_128, RopeParams, rope_store<128>(p))
BERTH_PLAIN(berth_embed, EmbedParams, embed(p))
BERTH_PLAIN(berth_silu_times, SiluParams, silu_times(p))
BERTH_PLAIN(berth_gather, GatherParams, gather(p))
BERTH_PLAIN(berth_dequantise, DequantiseParams, dequantise(p))
BERTH_PLAIN(berth_read_all, ReadParams, read_all(p))

extern "C" __global__ void __launch_bounds__(256) berth_norm(const __grid_constant__ NormParams p) {
    __shared__ float shared[kSmallWarps];
    norm(p, shared);
}

extern "C" __global__ void __launch_bounds__(256)
    berth_largest(const __grid_constant__ LargestParams p) {
    __shared__ uint64_t shared[kSmallWarps];
    largest(p, shared);
}
