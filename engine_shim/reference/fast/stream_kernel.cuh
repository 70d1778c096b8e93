// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "matrix_kernel.cuh"

#include <type_traits>

// The products of matrix_kernel.cuh for a device that must not wait for memory between two kernels.
//
// One group a multiprocessor stays until the product is done and takes every so many-th tile of the
// matrix. What a lane will need flows through a queue of its own in shared memory, filled by copies
// that run by themselves: nobody but the lane reads what it has asked for, so there is nothing to
// agree on. The queues are as large as shared memory allows and are filled before the kernel waits
// for the one before it, since weights depend on nothing; so memory is read on while small kernels
// compute, and the product goes on at once when its x is there.
namespace berth::engine::fast {

template <typename Weight, int kColumns, int kMatrices, int kTiles>
struct StreamKernel {
    static constexpr int kThreads = static_cast<int>(kStreamThreads);
    static constexpr int kSlices = kThreads / 32;          // warps share out k
    static constexpr int kHalf = 4 * Weight::kPerLane;     // k of 64 adjacent bytes
    static constexpr int kChunk = 2 * kHalf;               // k of one warp's step: 128 bytes
    static constexpr int kOperands = Weight::kPerLane / 2; // registers of one lane and row
    static constexpr int kPieces = kTiles * kMatrices * 4; // of 16 bytes: 2 rows, 2 halves
    static constexpr int kScales = Weight::kScaled ? kTiles * kMatrices : 0;
    static constexpr int kStages =
        static_cast<int>(kStreamQueueBytes) / (kThreads * (kPieces * 16 + kScales * 4));
    // Steps that x is loaded before it is needed: behind all that is asked of memory it comes late.
    static constexpr int kInputWords = kColumns * 2 * Weight::kPieces * 4;
    static constexpr int kAhead = kInputWords <= 8 ? 4 : kInputWords <= 16 ? 3 : 2;
    static constexpr int kTogether = kColumns < 2 ? 1 : 2; // column tiles added up at once
    static constexpr int kPitch = 8 * kTogether + 1;
    static_assert(kStages >= 2);

    struct Stage {
        uint4 words[kPieces][32];
        float scales[Weight::kScaled ? kScales : 1][Weight::kScaled ? 32 : 1];
    };
    struct PlainStage {
        uint4 words[kPieces][32];
    };
    using Queued = std::conditional_t<Weight::kScaled, Stage, PlainStage>;
    struct Shared {
        Queued queue[kStages][kSlices];
        float sums[kSlices][kMatrices][kTileRows][kPitch];
    };
    static_assert(sizeof(Shared) <= stream_shared_bytes(8 * kColumns, kMatrices == 2));

    using Sums = float[kTiles][kMatrices][kColumns][4];
    using Inputs = uint32_t[kColumns][2][Weight::kPieces][4]; // of x, for one step

    static constexpr uint32_t kNowhere = 0xffffffffU;
    // Where a tile lies: kNowhere as the part when there is none.
    struct Place {
        uint32_t part;
        uint32_t first;  // row within the part
        uint32_t before; // columns of `to` that earlier parts take
    };
    static __device__ Place find(const MatrixParams& p, uint32_t pass, int turn) {
        uint32_t tile = blockIdx.x + (pass * kTiles + static_cast<uint32_t>(turn)) * gridDim.x;
        Place place{0, 0, 0};
        const uint32_t parts = kMatrices == 1 ? p.parts : 1;
        while (place.part < parts && tile >= (p.n[place.part] + kTileRows - 1) / kTileRows) {
            tile -= (p.n[place.part] + kTileRows - 1) / kTileRows;
            place.before += p.n[place.part++];
        }
        place.first = tile * kTileRows;
        if (place.part == parts)
            place.part = kNowhere;
        return place;
    }

    // What the tiles of one pass are read from, by this lane.
    struct Rows {
        const unsigned char* row[kTiles][kMatrices][2];
        const float* scales[kTiles][kMatrices]; // FP8 alone
        bool there[kTiles];
    };
    static __device__ Rows rows_of(const MatrixParams& p, uint32_t pass) {
        Rows rows;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const Place place = find(p, pass, tile);
            rows.there[tile] = place.part != kNowhere;
            const uint32_t part = rows.there[tile] ? place.part : 0;
#pragma unroll
            for (int matrix = 0; matrix < kMatrices; ++matrix) {
                if constexpr (Weight::kScaled)
                    rows.scales[tile][matrix] =
                        p.scales[part + static_cast<uint32_t>(matrix)] +
                        static_cast<uint64_t>(rows.there[tile] ? place.first / 128 : 0) *
                            ((p.k + 127) / 128);
#pragma unroll
                for (uint32_t half = 0; half < 2; ++half) {
                    const uint32_t n = p.n[part];
                    uint32_t row = place.first + threadIdx.x % 32 / 4 + 8 * half;
                    row = row < n ? row : n - 1;
                    rows.row[tile][matrix][half] =
                        static_cast<const unsigned char*>(
                            p.weight[part + static_cast<uint32_t>(matrix)]) +
                        static_cast<uint64_t>(row) * p.k * Weight::kBytes + threadIdx.x % 4 * 16;
                }
            }
        }
        return rows;
    }

    static __device__ uint32_t chunk_of(uint32_t step) { return step * kSlices + threadIdx.x / 32; }

    static __device__ void ask(const MatrixParams& p, const Rows& rows, uint32_t step,
                               Queued& queued) {
        const uint32_t chunk = chunk_of(step);
        if (chunk * kChunk >= p.k)
            return;
        const bool whole = chunk * kChunk + kHalf < p.k;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            if (!rows.there[tile])
                continue;
#pragma unroll
            for (int matrix = 0; matrix < kMatrices; ++matrix) {
                const int first = (tile * kMatrices + matrix) * 4;
#pragma unroll
                for (int row = 0; row < 2; ++row)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        copy_by_itself(&queued.words[first + row * 2 + half][threadIdx.x % 32],
                                       rows.row[tile][matrix][row] +
                                           static_cast<uint64_t>(chunk) * 128 + half * 64,
                                       half == 0 || whole);
                if constexpr (Weight::kScaled)
                    copy_word_by_itself(&queued.scales[tile * kMatrices + matrix][threadIdx.x % 32],
                                        rows.scales[tile][matrix] + chunk);
            }
        }
    }

    static __device__ void load_x(const MatrixParams& p, uint32_t step, Inputs& x) {
        const uint32_t chunk = chunk_of(step);
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
            const uint32_t m =
                (blockIdx.y * kColumns + static_cast<uint32_t>(column)) * 8 + threadIdx.x % 32 / 4;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t k = chunk * kChunk + static_cast<uint32_t>(half) * kHalf +
                                   threadIdx.x % 4 * Weight::kPerLane;
#pragma unroll
                for (int piece = 0; piece < Weight::kPieces; ++piece)
                    put(x[column][half][piece],
                        m < p.m && k < p.k
                            ? load_again(p.x + static_cast<uint64_t>(m) * p.k + k + 8 * piece)
                            : uint4{0, 0, 0, 0});
            }
        }
    }
    static __device__ void put(uint32_t (&words)[4], uint4 from) {
        words[0] = from.x;
        words[1] = from.y;
        words[2] = from.z;
        words[3] = from.w;
    }

    static __device__ void multiply_half(const Queued& queued, int first, int half, const Inputs& x,
                                         float (&sums)[kColumns][4]) {
        uint32_t left[2][kOperands];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            uint32_t words[4];
            put(words, queued.words[first + row * 2 + half][threadIdx.x % 32]);
#pragma unroll
            for (int index = 0; index < kOperands; ++index)
                left[row][index] = Weight::operand(words, index);
        }
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
#pragma unroll
            for (int index = 0; index < kOperands; index += 2) {
                const uint32_t(&words)[4] = x[column][half][index / 4];
                multiply_add(sums[column], left[0][index], left[1][index], left[0][index + 1],
                             left[1][index + 1], words[index % 4], words[index % 4 + 1]);
            }
    }

    static __device__ void multiply(const MatrixParams& p, const Rows& rows, uint32_t step,
                                    const Queued& queued, const Inputs& x, Sums& sums) {
        if (chunk_of(step) * kChunk >= p.k)
            return;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            if (!rows.there[tile])
                continue;
#pragma unroll
            for (int matrix = 0; matrix < kMatrices; ++matrix) {
                const int first = (tile * kMatrices + matrix) * 4;
                if constexpr (!Weight::kScaled) {
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        multiply_half(queued, first, half, x, sums[tile][matrix]);
                } else {
                    float scaled[kColumns][4] = {};
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        multiply_half(queued, first, half, x, scaled);
                    const float scale = queued.scales[tile * kMatrices + matrix][threadIdx.x % 32];
#pragma unroll
                    for (int column = 0; column < kColumns; ++column)
#pragma unroll
                        for (int index = 0; index < 4; ++index)
                            sums[tile][matrix][column][index] = fmaf(
                                scale, scaled[column][index], sums[tile][matrix][column][index]);
                }
            }
        }
    }

    // Adds up what the warps have of some columns of one tile, always in the same order.
    static __device__ void finish(const MatrixParams& p, const Place& place,
                                  const float (&sums)[kMatrices][kColumns][4], int first_column,
                                  Shared& shared) {
        const uint32_t lane_row = threadIdx.x % 32 / 4;
        const uint32_t lane_column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int matrix = 0; matrix < kMatrices; ++matrix)
#pragma unroll
            for (int column = 0; column < kTogether; ++column)
#pragma unroll
                for (uint32_t index = 0; index < 4; ++index)
                    shared.sums[threadIdx.x / 32][matrix][lane_row + index / 2 * 8]
                               [static_cast<uint32_t>(column) * 8 + lane_column + index % 2] =
                        sums[matrix][first_column + column][index];
        const uint32_t row = threadIdx.x % kTileRows;
        const uint32_t column = threadIdx.x / kTileRows;
        const uint32_t m =
            (blockIdx.y * kColumns + static_cast<uint32_t>(first_column)) * 8 + column;
        const uint32_t n = place.first + row;
        const bool mine = column < 8 * kTogether && m < p.m && n < p.n[place.part];
        const uint64_t at = static_cast<uint64_t>(m) * p.to_pitch + place.before + n;
        float before = 0;
        if (kMatrices == 1 && mine && p.mode == kAdd)
            before = static_cast<const float*>(p.to)[at];
        barrier();
        if (mine) {
            float total[kMatrices] = {};
#pragma unroll
            for (int matrix = 0; matrix < kMatrices; ++matrix)
#pragma unroll
                for (int slice = 0; slice < kSlices; ++slice)
                    total[matrix] += shared.sums[slice][matrix][row][column];
            if constexpr (kMatrices == 2) {
                const float gated = total[0] / (1.0F + power_of_two(total[0] * -1.44269504F));
                static_cast<Bf16*>(p.to)[at] = to_bf16(gated * total[1]);
            } else {
                static_cast<float*>(p.to)[at] = before + total[0];
            }
        }
        barrier();
    }

    // Asks for what comes next, into the place that has become free.
    struct Feed {
        Rows rows;
        uint32_t pass;
        uint32_t step;
    };
    static __device__ void ask_next(const MatrixParams& p, uint32_t steps, Feed& feed,
                                    Queued& queued) {
        ask(p, feed.rows, feed.step, queued);
        end_of_copies();
        if (++feed.step == steps) {
            feed.step = 0;
            feed.rows = rows_of(p, ++feed.pass);
        }
    }

    static __device__ void run(const MatrixParams& p, Shared& shared) {
        release_next();
        const uint32_t warp = threadIdx.x / 32;
        const uint32_t chunks = (p.k + kChunk - 1) / kChunk;
        const uint32_t steps = (chunks + kSlices - 1) / kSlices;
        Feed feed{rows_of(p, 0), 0, 0};
#pragma unroll 1
        for (int stage = 0; stage < kStages; ++stage)
            ask_next(p, steps, feed, shared.queue[stage][warp]);
        wait_for_previous();
        Inputs x[kAhead]; // of this step and those after it; the next pass begins like this one
        uint32_t ahead = 0;
#pragma unroll
        for (int turn = 0; turn < kAhead; ++turn) {
            load_x(p, ahead, x[turn]);
            ahead = ahead + 1 == steps ? 0 : ahead + 1;
        }
        int stage = 0;
#pragma unroll 1
        for (uint32_t pass = 0;; ++pass) {
            const Rows rows = rows_of(p, pass);
            if (!rows.there[0])
                break;
            Sums sums{};
            // Not unrolled: what is fetched of the kernel waits in line with what is asked of
            // memory.
#pragma unroll 1
            for (uint32_t step = 0; step < steps; ++step) {
                Queued& queued = shared.queue[stage][warp];
                wait_for_copies<kStages - 1>();
                multiply(p, rows, step, queued, x[0], sums);
                ask_next(p, steps, feed, queued);
#pragma unroll
                for (int turn = 1; turn < kAhead; ++turn)
                    __builtin_memcpy(&x[turn - 1], &x[turn], sizeof x[0]);
                load_x(p, ahead, x[kAhead - 1]);
                ahead = ahead + 1 == steps ? 0 : ahead + 1;
                stage = stage + 1 == kStages ? 0 : stage + 1;
            }
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                if (rows.there[tile]) {
                    const Place place = find(p, pass, tile);
#pragma unroll
                    for (int column = 0; column < kColumns; column += kTogether)
                        finish(p, place, sums[tile], column, shared);
                }
        }
    }
};

} // namespace berth::engine::fast
