// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernel_math.cuh"

// Products of few rows with a large matrix, at the speed at which the matrix comes from memory.
//
// A warp takes 16 rows of the matrix as the left operand of the tensor cores and 8 rows of x as the
// right one. Since a product is a sum over k, k may be permuted as long as both sides agree: each
// lane reads 16 adjacent bytes of a matrix row and of an x row, and what lies in its registers then
// *is* an operand, without a detour through shared memory. Warps of a group share out k, and add up
// at the end, always in the same order.
namespace berth::engine::fast {

constexpr int kTileRows = 16;

// How one lane's 16 bytes become operands.
struct Bf16Weight {
    static constexpr int kBytes = 1 * 2;
    static constexpr int kPerLane = 8; // elements in 16 bytes
    static constexpr int kPieces = 1;  // of 16 bytes of x beside them
    static constexpr bool kScaled = false;
    static __device__ uint32_t operand(const uint32_t (&words)[4], int index) {
        return words[index];
    }
};
struct Fp8Weight {
    static constexpr int kBytes = 1;
    static constexpr int kPerLane = 16;
    static constexpr int kPieces = 2;
    static constexpr bool kScaled = true;
    // e4m3 moved into bf16's places is 2^120 times too small, denormals included.
    static __device__ uint32_t operand(const uint32_t (&words)[4], int index) {
        const uint32_t two = spread_bytes(words[index / 2], index % 2);
        const uint32_t bits = (two & 0x00800080U) << 8 | (two & 0x007f007fU) << 4;
        return multiply_bf16x2(bits, 0x7b807b80U);
    }
};

template <typename Weight, int kColumns, int kMatrices, int kRowWarps, int kSlices>
struct MatrixKernel {
    static constexpr int kThreads = 32 * kRowWarps * kSlices;
    static constexpr int kGroupRows = kTileRows * kRowWarps; // of the matrix, for one group
    static constexpr int kHalf = 4 * Weight::kPerLane;       // k of 64 adjacent bytes
    static constexpr int kChunk = 2 * kHalf;
    static constexpr int kUnroll = kMatrices == 1 ? 2 : 1;
    static constexpr int kOperands = Weight::kPerLane / 2; // registers of one lane and row

    // One warp's part of the matrix in flight.
    struct Loads {
        uint32_t words[kUnroll][kMatrices][2][2][4]; // chunk, matrix, row, half
    };
    using Sums = float[kMatrices][kColumns][4];

    struct Place {
        const unsigned char* row[kMatrices][2];
        const float* scales[kMatrices];
        uint32_t part;
        uint32_t first; // row within the part
        bool there;
    };

    static __device__ Place find(const MatrixParams& p, uint32_t tile) {
        Place place{};
        place.there = true;
        if constexpr (kMatrices == 1) {
            while (place.part < p.parts && tile >= (p.n[place.part] + kTileRows - 1) / kTileRows) {
                tile -= (p.n[place.part] + kTileRows - 1) / kTileRows;
                ++place.part;
            }
            place.there = place.part < p.parts;
            if (!place.there)
                place.part = 0;
        }
        place.first = tile * kTileRows;
        if (place.first >= p.n[place.part])
            place.there = false;
        const uint32_t lane_row = place.first + threadIdx.x % 32 / 4;
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
            const uint32_t part = place.part + static_cast<uint32_t>(matrix);
            const auto* base = static_cast<const unsigned char*>(p.weight[part]);
            for (uint32_t half = 0; half < 2; ++half) {
                uint32_t row = lane_row + 8 * half;
                row = row < p.n[part] ? row : p.n[part] - 1;
                place.row[matrix][half] = base + static_cast<uint64_t>(row) * p.k * Weight::kBytes;
            }
            if constexpr (Weight::kScaled)
                place.scales[matrix] =
                    p.scales[part] + static_cast<uint64_t>(place.first / 128) * ((p.k + 127) / 128);
        }
        return place;
    }

    static __device__ uint32_t chunk_of(uint32_t group, uint32_t slice, int unroll) {
        return (group * kSlices + slice) * kUnroll + static_cast<uint32_t>(unroll);
    }
    static __device__ uint32_t k_of(uint32_t chunk, int half) {
        return chunk * kChunk + static_cast<uint32_t>(half) * kHalf +
               threadIdx.x % 4 * Weight::kPerLane;
    }
    static __device__ void put(uint32_t (&words)[4], uint4 from) {
        words[0] = from.x;
        words[1] = from.y;
        words[2] = from.z;
        words[3] = from.w;
    }

    static __device__ void load(const MatrixParams& p, const Place& place, uint32_t group,
                                uint32_t slice, Loads& loads) {
#pragma unroll
        for (int unroll = 0; unroll < kUnroll; ++unroll)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t k = k_of(chunk_of(group, slice, unroll), half);
#pragma unroll
                for (int matrix = 0; matrix < kMatrices; ++matrix)
#pragma unroll
                    for (int row = 0; row < 2; ++row)
                        put(loads.words[unroll][matrix][row][half],
                            k < p.k ? load_once(place.row[matrix][row] +
                                                static_cast<uint64_t>(k) * Weight::kBytes)
                                    : uint4{0, 0, 0, 0});
            }
    }

    static __device__ void load_x(const MatrixParams& p, uint32_t column, uint32_t k,
                                  uint32_t (&words)[Weight::kPieces][4]) {
        const uint32_t m = blockIdx.y * 8 * kColumns + column;
#pragma unroll
        for (int piece = 0; piece < Weight::kPieces; ++piece)
            put(words[piece], m < p.m && k < p.k
                                  ? load_again(p.x + static_cast<uint64_t>(m) * p.k + k + 8 * piece)
                                  : uint4{0, 0, 0, 0});
    }

    static __device__ void multiply(const MatrixParams& p, const Place& place, uint32_t group,
                                    uint32_t slice, const Loads& loads, Sums& sums) {
        const uint32_t lane_column = threadIdx.x % 32 / 4;
#pragma unroll
        for (int unroll = 0; unroll < kUnroll; ++unroll) {
            const uint32_t chunk = chunk_of(group, slice, unroll);
            Sums scaled{};
            Sums& to = Weight::kScaled ? scaled : sums;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t k = k_of(chunk, half);
                uint32_t left[kMatrices][2][kOperands];
#pragma unroll
                for (int matrix = 0; matrix < kMatrices; ++matrix)
#pragma unroll
                    for (int row = 0; row < 2; ++row)
#pragma unroll
                        for (int index = 0; index < kOperands; ++index)
                            left[matrix][row][index] =
                                Weight::operand(loads.words[unroll][matrix][row][half], index);
#pragma unroll
                for (int column = 0; column < kColumns; ++column) {
                    uint32_t x[Weight::kPieces][4];
                    load_x(p, static_cast<uint32_t>(column) * 8 + lane_column, k, x);
#pragma unroll
                    for (int matrix = 0; matrix < kMatrices; ++matrix)
#pragma unroll
                        for (int index = 0; index < kOperands; index += 2)
                            multiply_add(to[matrix][column], left[matrix][0][index],
                                         left[matrix][1][index], left[matrix][0][index + 1],
                                         left[matrix][1][index + 1], x[index / 4][index % 4],
                                         x[index / 4][index % 4 + 1]);
                }
            }
            if constexpr (Weight::kScaled) {
                if (chunk * kChunk >= p.k)
                    continue;
#pragma unroll
                for (int matrix = 0; matrix < kMatrices; ++matrix) {
                    const float scale = place.scales[matrix][chunk];
#pragma unroll
                    for (int column = 0; column < kColumns; ++column)
#pragma unroll
                        for (int index = 0; index < 4; ++index)
                            sums[matrix][column][index] = fmaf(scale, scaled[matrix][column][index],
                                                               sums[matrix][column][index]);
                }
            }
        }
    }

    static constexpr int kPitch = 8 * kColumns + 1;
    struct Shared {
        float sums[kSlices][kRowWarps][kMatrices][kTileRows][kPitch];
    };

    static __device__ void share(const Sums& sums, uint32_t slice, uint32_t row_warp,
                                 Shared& shared) {
        const uint32_t row = threadIdx.x % 32 / 4;
        const uint32_t column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int matrix = 0; matrix < kMatrices; ++matrix)
#pragma unroll
            for (int tile = 0; tile < kColumns; ++tile)
#pragma unroll
                for (uint32_t index = 0; index < 4; ++index)
                    shared.sums[slice][row_warp][matrix][row + index / 2 * 8]
                               [static_cast<uint32_t>(tile) * 8 + column + index % 2] =
                        sums[matrix][tile][index];
    }

    static __device__ float total(const Shared& shared, uint32_t row_warp, int matrix, uint32_t row,
                                  uint32_t column) {
        float sum = 0;
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice)
            sum += shared.sums[slice][row_warp][matrix][row][column];
        return sum;
    }

    static __device__ void finish(const MatrixParams& p, const Shared& shared) {
        const uint32_t first_m = blockIdx.y * 8 * kColumns;
        const uint32_t columns = p.m - first_m < 8 * kColumns ? p.m - first_m : 8 * kColumns;
        for (uint32_t index = threadIdx.x; index < kGroupRows * columns; index += kThreads) {
            const uint32_t row = index % kTileRows;
            const uint32_t row_warp = index % kGroupRows / kTileRows;
            const uint32_t column = index / kGroupRows;
            uint32_t tile = blockIdx.x * kRowWarps + row_warp;
            uint32_t before = 0; // columns of `to` that earlier parts take
            uint32_t part = 0;
            if constexpr (kMatrices == 1) {
                while (part < p.parts && tile >= (p.n[part] + kTileRows - 1) / kTileRows) {
                    tile -= (p.n[part] + kTileRows - 1) / kTileRows;
                    before += p.n[part++];
                }
                if (part == p.parts)
                    continue;
            }
            const uint32_t n = tile * kTileRows + row;
            if (n >= p.n[part])
                continue;
            const uint64_t at = static_cast<uint64_t>(first_m + column) * p.to_pitch + before + n;
            const float value = total(shared, row_warp, 0, row, column);
            if constexpr (kMatrices == 2) {
                const float gated = value / (1.0F + power_of_two(value * -1.44269504F));
                static_cast<Bf16*>(p.to)[at] =
                    to_bf16(gated * total(shared, row_warp, 1, row, column));
            } else {
                float* to = static_cast<float*>(p.to) + at;
                *to = p.mode == kAdd ? *to + value : value;
            }
        }
    }

    static __device__ void run(const MatrixParams& p, Shared& shared) {
        release_next();
        const uint32_t warp = threadIdx.x / 32;
        const uint32_t slice = warp % kSlices;
        const uint32_t row_warp = warp / kSlices;
        const Place place = find(p, blockIdx.x * kRowWarps + row_warp);
        const uint32_t chunks = (p.k + kChunk - 1) / kChunk;
        const uint32_t groups = (chunks + kSlices * kUnroll - 1) / (kSlices * kUnroll);
        Sums sums{};
        Loads now, next;
        // Weights do not depend on the kernel before.
        if (place.there)
            load(p, place, 0, slice, now);
        wait_for_previous();
        if (place.there) {
            for (uint32_t group = 0; group < groups; ++group) {
                if (group + 1 < groups)
                    load(p, place, group + 1, slice, next);
                multiply(p, place, group, slice, now, sums);
                now = next;
            }
        }
        share(sums, slice, row_warp, shared);
        barrier();
        finish(p, shared);
    }
};

} // namespace berth::engine::fast
