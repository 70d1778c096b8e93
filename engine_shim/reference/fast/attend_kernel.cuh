// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernel_math.cuh"

// Attention of one query over paged keys and values, for the query heads that share a key head. The
// context is cut into splits, one group of threads each, so that a single sequence keeps the whole
// device busy; attend_merge() puts the pieces together. Scores are powers of two throughout.
namespace berth::engine::fast {

template <int kDim, int kHeads>
struct AttendKernel {
    static constexpr int kWarps = 4;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kLanes = kDim / 8;       // that share a token
    static constexpr int kTogether = 32 / kLanes; // tokens of one load
    static constexpr int kLoads = 4;
    static constexpr int kTile = kLoads * kTogether; // tokens of one turn

    struct Shared {
        float largest[kWarps][kHeads];
        float weight[kWarps][kHeads];
        float sums[kWarps][kHeads][kDim];
    };

    // What a warp has seen so far.
    struct Running {
        float largest[kHeads];
        float weight[kHeads];
        float sums[kHeads][8];
    };

    static __device__ void unpack(uint4 words, float (&to)[8]) {
        const uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int index = 0; index < 4; ++index) {
            to[2 * index] = low_of(all[index]);
            to[2 * index + 1] = high_of(all[index]);
        }
    }

    static __device__ void load_queries(const AttendParams& p, uint32_t row, uint32_t first_head,
                                        uint32_t heads, float (&q)[kHeads][8]) {
        const uint32_t at = threadIdx.x % kLanes * 8;
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
            const bool there = static_cast<uint32_t>(head) < heads;
            const uint64_t from =
                (static_cast<uint64_t>(row) * p.heads + first_head + static_cast<uint32_t>(head)) *
                    kDim +
                at;
            unpack(there ? load_again(p.q + from) : uint4{0, 0, 0, 0}, q[head]);
#pragma unroll
            for (int index = 0; index < 8; ++index)
                q[head][index] *= p.scale;
        }
    }

    // Scores of the tile, in powers of two; what lies behind the context gets none.
    static __device__ void score(const uint4 (&keys)[kLoads], const float (&q)[kHeads][8],
                                 const bool (&there)[kLoads], float (&scores)[kLoads][kHeads]) {
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            float key[8];
            unpack(keys[load], key);
#pragma unroll
            for (int head = 0; head < kHeads; ++head) {
                float sum = 0;
#pragma unroll
                for (int index = 0; index < 8; ++index)
                    sum = fmaf(q[head][index], key[index], sum);
#pragma unroll
                for (int mask = kLanes / 2; mask > 0; mask >>= 1)
                    sum += shuffle_xor(sum, mask);
                scores[load][head] = there[load] ? sum : kMinusInfinity;
            }
        }
    }

    static __device__ void take(const uint4 (&values)[kLoads], float (&scores)[kLoads][kHeads],
                                Running& running) {
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
            float largest = scores[0][head];
#pragma unroll
            for (int load = 1; load < kLoads; ++load)
                largest = fmaxf(largest, scores[load][head]);
#pragma unroll
            for (int mask = kLanes; mask < 32; mask <<= 1)
                largest = fmaxf(largest, shuffle_xor(largest, mask));
            largest = fmaxf(largest, running.largest[head]);
            const float shrink = power_of_two(running.largest[head] - largest);
            running.largest[head] = largest;
            running.weight[head] *= shrink;
#pragma unroll
            for (int index = 0; index < 8; ++index)
                running.sums[head][index] *= shrink;
#pragma unroll
            for (int load = 0; load < kLoads; ++load) {
                scores[load][head] = power_of_two(scores[load][head] - largest);
                running.weight[head] += scores[load][head];
            }
        }
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            float value[8];
            unpack(values[load], value);
#pragma unroll
            for (int head = 0; head < kHeads; ++head)
#pragma unroll
                for (int index = 0; index < 8; ++index)
                    running.sums[head][index] =
                        fmaf(scores[load][head], value[index], running.sums[head][index]);
        }
    }

    // Tokens from `begin` to `end`, a tile for each warp in turn.
    static __device__ void walk(const AttendParams& p, uint32_t row, uint32_t kv_head,
                                uint32_t begin, uint32_t end, const float (&q)[kHeads][8],
                                Running& running) {
        const uint32_t lane = threadIdx.x % 32;
        const int32_t pitch = p.pages.header->table_pitch;
        for (uint32_t tile = begin + threadIdx.x / 32 * kTile; tile < end; tile += kWarps * kTile) {
            uint4 keys[kLoads];
            uint4 values[kLoads];
            bool there[kLoads];
#pragma unroll
            for (int load = 0; load < kLoads; ++load) {
                const uint32_t token =
                    tile + static_cast<uint32_t>(load) * kTogether + lane / kLanes;
                there[load] = token < end;
                // What lies behind the end was never written: not even zero times it is zero.
                keys[load] = values[load] = uint4{0, 0, 0, 0};
                if (there[load]) {
                    const Bf16* plane = page_of(p.pages, pitch, row, token, 2 * p.layer);
                    const uint64_t at =
                        static_cast<uint64_t>(token % p.pages.block_tokens * p.pages.kv_heads +
                                              kv_head) *
                            kDim +
                        lane % kLanes * 8;
                    keys[load] = load_once(plane + at);
                    values[load] = load_once(plane + p.pages.plane_stride + at);
                }
            }
            float scores[kLoads][kHeads];
            score(keys, q, there, scores);
            take(values, scores, running);
        }
    }

    static __device__ void share(Running& running, Shared& shared) {
        const uint32_t warp = threadIdx.x / 32;
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
#pragma unroll
            for (int mask = kLanes; mask < 32; mask <<= 1) {
                running.weight[head] += shuffle_xor(running.weight[head], mask);
#pragma unroll
                for (int index = 0; index < 8; ++index)
                    running.sums[head][index] += shuffle_xor(running.sums[head][index], mask);
            }
            if (lane == 0) {
                shared.largest[warp][head] = running.largest[head];
                shared.weight[warp][head] = running.weight[head];
            }
            if (lane < kLanes)
#pragma unroll
                for (int index = 0; index < 8; ++index)
                    shared.sums[warp][head][lane * 8 + static_cast<uint32_t>(index)] =
                        running.sums[head][index];
        }
    }

    static __device__ void finish(const AttendParams& p, uint32_t row, uint32_t split,
                                  uint32_t first_head, uint32_t heads, const Shared& shared) {
        for (uint32_t index = threadIdx.x; index < heads * kDim; index += kThreads) {
            const uint32_t head = index / kDim;
            const uint32_t place = index % kDim;
            float largest = kMinusInfinity;
            for (int warp = 0; warp < kWarps; ++warp)
                largest = fmaxf(largest, shared.largest[warp][head]);
            float sum = 0;
            float weight = 0;
            for (int warp = 0; warp < kWarps; ++warp) {
                if (shared.largest[warp][head] == kMinusInfinity)
                    continue;
                const float part = power_of_two(shared.largest[warp][head] - largest);
                sum = fmaf(shared.sums[warp][head][place], part, sum);
                weight = fmaf(shared.weight[warp][head], part, weight);
            }
            const uint64_t at = static_cast<uint64_t>(row) * p.heads + first_head + head;
            if (p.splits == 1) {
                p.to[at * kDim + place] = to_bf16(weight > 0 ? sum / weight : 0.0F);
                continue;
            }
            float* partial = p.partial + (at * p.splits + split) * (kDim + 2);
            partial[place] = sum;
            if (place == 0) {
                partial[kDim] = largest;
                partial[kDim + 1] = weight;
            }
        }
    }

    static __device__ void run(const AttendParams& p, Shared& shared) {
        release_next();
        wait_for_previous();
        const uint32_t shared_heads = p.heads / p.pages.kv_heads;
        const uint32_t groups = (shared_heads + kHeads - 1) / kHeads;
        const uint32_t kv_head = blockIdx.x / groups;
        const uint32_t within = blockIdx.x % groups * kHeads;
        const uint32_t heads = shared_heads - within < kHeads ? shared_heads - within : kHeads;
        const uint32_t first_head = kv_head * shared_heads + within;
        const uint32_t split = blockIdx.y;
        const uint32_t row = blockIdx.z;
        // Pieces are whole tiles, so that a warp's work does not straddle two of them.
        const auto length = static_cast<uint32_t>(p.positions[row] + 1);
        const uint32_t tiles = (length + kTile - 1) / kTile;
        const uint32_t piece = (tiles + p.splits - 1) / p.splits * kTile;
        const uint32_t begin = split * piece;
        const uint32_t end = begin + piece < length ? begin + piece : length;
        Running running;
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
            running.largest[head] = kMinusInfinity;
            running.weight[head] = 0;
#pragma unroll
            for (int index = 0; index < 8; ++index)
                running.sums[head][index] = 0;
        }
        if (begin < end) {
            float q[kHeads][8];
            load_queries(p, row, first_head, heads, q);
            walk(p, row, kv_head, begin, end, q, running);
        }
        share(running, shared);
        barrier();
        finish(p, row, split, first_head, heads, shared);
    }
};

struct MergeShared {
    float largest[kSplitsMax];
    float weight[kSplitsMax];
};

// One group for each head and row, a thread for each place.
template <int kDim>
__device__ void attend_merge(const AttendParams& p, MergeShared& shared) {
    static_assert(kDim >= kSplitsMax);
    release_next();
    wait_for_previous();
    const uint64_t at = static_cast<uint64_t>(blockIdx.y) * p.heads + blockIdx.x;
    const float* partial = p.partial + at * p.splits * (kDim + 2);
    if (threadIdx.x < p.splits) {
        shared.largest[threadIdx.x] = partial[threadIdx.x * (kDim + 2) + kDim];
        shared.weight[threadIdx.x] = partial[threadIdx.x * (kDim + 2) + kDim + 1];
    }
    barrier();
    float largest = kMinusInfinity;
    for (uint32_t split = 0; split < p.splits; ++split)
        largest = fmaxf(largest, shared.largest[split]);
    float sum = 0;
    float weight = 0;
#pragma unroll 8
    for (uint32_t split = 0; split < p.splits; ++split) {
        // Empty pieces weigh nothing, and what they summed is zero.
        const float part =
            shared.weight[split] > 0 ? power_of_two(shared.largest[split] - largest) : 0.0F;
        sum = fmaf(partial[split * (kDim + 2) + threadIdx.x], part, sum);
        weight = fmaf(shared.weight[split], part, weight);
    }
    p.to[at * kDim + threadIdx.x] = to_bf16(weight > 0 ? sum / weight : 0.0F);
}

} // namespace berth::engine::fast
