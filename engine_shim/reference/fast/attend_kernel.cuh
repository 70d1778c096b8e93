// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "head_math.cuh"

// Attention of one query over paged keys and values, for the query heads that share a key head. The
// context is cut into splits, one group of threads each, so that a single sequence keeps the whole
// device busy; attend_merge() puts the pieces together. Scores are powers of two throughout.
// run_all() does what lies before and behind it too: it makes queries, and the newest key and
// value, out of what the product has left, stores these in their page, and merges. What it reads of
// the context was there before the step began, so the first of it is asked for before the product
// ends.
namespace berth::engine::fast {

template <int kDim, int kHeads>
struct AttendKernel {
    static constexpr int kWarps = 4;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kTile = kPageTokens;           // tokens of one warp's turn
    static constexpr int kParts = kDim / 32;            // of a key: 64 bytes, shared by 4 lanes
    static constexpr int kLanes = kDim / 8;             // that share a value
    static constexpr int kTogether = 32 / kLanes;       // values of one load
    static constexpr int kLoads = kTile / kTogether;    // of values
    static constexpr uint32_t kStride = kWarps * kTile; // a tile for each warp in turn

    struct Shared {
        float largest[kWarps][kHeads];
        float weight[kWarps][kHeads];
        float sums[kWarps][kHeads][kDim];
        float shares[kWarps][kTile][kHeads]; // of the tile at hand
        float shrink[kWarps][kHeads];
    };

    // Scores come out of the tensor cores: a lane has those of tokens lane / 4 and 8 behind it, for
    // two heads. Sums are per value: a lane has 8 places of every kTogether-th token.
    struct Running {
        float largest[2];
        float weight[2];
        float sums[kHeads][8];
    };
    using Queries = uint32_t[kParts][4];

    static __device__ void put(uint32_t (&words)[4], uint4 from) {
        words[0] = from.x;
        words[1] = from.y;
        words[2] = from.z;
        words[3] = from.w;
    }
    static __device__ void unpack(uint4 words, float (&to)[8]) {
        uint32_t all[4];
        put(all, words);
#pragma unroll
        for (int index = 0; index < 4; ++index) {
            to[2 * index] = low_of(all[index]);
            to[2 * index + 1] = high_of(all[index]);
        }
    }

    // `first`: of the group's heads, each of kDim / 8 times 16 bytes.
    static __device__ void load_queries(const uint4* first, uint32_t heads, Queries& q) {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t head = lane / 4;
#pragma unroll
        for (uint32_t part = 0; part < kParts; ++part)
            put(q[part], head < kHeads && head < heads
                             ? first[head * (kDim / 8) + part * 4 + lane % 4]
                             : uint4{0, 0, 0, 0});
    }

    // Which of the context a group takes.
    struct Part {
        uint32_t row, split, kv_head, first_head, heads;
        int32_t position;
        uint32_t begin, end; // tokens
    };
    static __device__ Part find(const AttendParams& p) {
        Part part;
        const uint32_t shared_heads = p.heads / p.pages.kv_heads;
        const uint32_t groups = (shared_heads + kHeads - 1) / kHeads;
        part.kv_head = blockIdx.x / groups;
        const uint32_t within = blockIdx.x % groups * kHeads;
        part.heads = shared_heads - within < kHeads ? shared_heads - within : kHeads;
        part.first_head = part.kv_head * shared_heads + within;
        part.split = blockIdx.y;
        part.row = blockIdx.z;
        part.position = p.positions[part.row];
        // Pieces are whole tiles, so that a warp's work does not straddle two of them.
        const auto length = static_cast<uint32_t>(part.position + 1);
        const uint32_t tiles = (length + kTile - 1) / kTile;
        const uint32_t piece = (tiles + p.splits - 1) / p.splits * kTile;
        part.begin = part.split * piece;
        part.end = part.begin + piece < length ? part.begin + piece : length;
        return part;
    }

    struct Tile {
        uint4 keys[2][kParts];
        uint4 values[kLoads];
    };
    static __device__ uint32_t key_token(uint32_t tile, int row) {
        return tile + threadIdx.x % 32 / 4 + 8 * static_cast<uint32_t>(row);
    }
    static __device__ uint32_t value_token(uint32_t tile, int load) {
        return tile + static_cast<uint32_t>(load) * kTogether + threadIdx.x % 32 / kLanes;
    }
    // Blocks are whole tiles, see kPageTokens: one look into the table finds all of a tile.
    static __device__ const Bf16* at_token(const AttendParams& p, const Part& part,
                                           uint32_t token) {
        return page_of(p.pages, p.pages.header->table_pitch, part.row, token, 2 * p.layer) +
               static_cast<uint64_t>(token % p.pages.block_tokens * p.pages.kv_heads +
                                     part.kv_head) *
                   kDim;
    }
    // What lies behind the end was never written: not even zero times it is zero.
    static __device__ void load(const AttendParams& p, const Part& part, uint32_t tile,
                                uint32_t end, Tile& to) {
#pragma unroll
        for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int piece = 0; piece < kParts; ++piece)
                to.keys[row][piece] = uint4{0, 0, 0, 0};
#pragma unroll
        for (int load = 0; load < kLoads; ++load)
            to.values[load] = uint4{0, 0, 0, 0};
        if (tile >= end)
            return;
        const Bf16* first = at_token(p, part, tile);
        const uint32_t pitch = p.pages.kv_heads * kDim; // from token to token
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const uint32_t token = key_token(tile, row);
            if (token >= end)
                continue;
            const Bf16* from = first + (token - tile) * pitch + threadIdx.x % 4 * 8;
#pragma unroll
            for (int piece = 0; piece < kParts; ++piece)
                to.keys[row][piece] = load_once(from + piece * 32);
        }
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            const uint32_t token = value_token(tile, load);
            if (token < end)
                to.values[load] = load_once(first + p.pages.plane_stride + (token - tile) * pitch +
                                            threadIdx.x % kLanes * 8);
        }
    }

    static __device__ void score(const Tile& tile, const Queries& q, float (&scores)[4]) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            uint32_t keys[2][4];
            put(keys[0], tile.keys[0][part]);
            put(keys[1], tile.keys[1][part]);
#pragma unroll
            for (int index = 0; index < 4; index += 2)
                multiply_add(scores, keys[0][index], keys[1][index], keys[0][index + 1],
                             keys[1][index + 1], q[part][index], q[part][index + 1]);
        }
    }

    static __device__ void work_on(const Tile& loaded, uint32_t tile, uint32_t end, float scale,
                                   const Queries& q, Running& running, Shared& shared) {
        const uint32_t warp = threadIdx.x / 32;
        const uint32_t lane = threadIdx.x % 32;
        float scores[4] = {0, 0, 0, 0}; // token, then head
        score(loaded, q, scores);
#pragma unroll
        for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int head = 0; head < 2; ++head) {
                float& one = scores[row * 2 + head];
                one = key_token(tile, row) < end ? one * scale : kMinusInfinity;
            }
        barrier_of_warp(); // the last tile's shares have been read
#pragma unroll
        for (uint32_t head = 0; head < 2; ++head) {
            float largest = fmaxf(scores[head], scores[2 + head]);
#pragma unroll
            for (int mask = 4; mask < 32; mask <<= 1)
                largest = fmaxf(largest, shuffle_xor(largest, mask));
            largest = fmaxf(largest, running.largest[head]);
            const float shrink = power_of_two(running.largest[head] - largest);
            running.largest[head] = largest;
            const float first = power_of_two(scores[head] - largest);
            const float second = power_of_two(scores[2 + head] - largest);
            running.weight[head] = fmaf(running.weight[head], shrink, first + second);
            const uint32_t column = lane % 4 * 2 + head;
            if (column < kHeads) {
                shared.shares[warp][lane / 4][column] = first;
                shared.shares[warp][lane / 4 + 8][column] = second;
                if (lane < 4)
                    shared.shrink[warp][column] = shrink;
            }
        }
        barrier_of_warp();
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
            const float shrink = shared.shrink[warp][head];
#pragma unroll
            for (int index = 0; index < 8; ++index)
                running.sums[head][index] *= shrink;
        }
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            float value[8];
            unpack(loaded.values[load], value);
            const float* shares =
                shared.shares[warp][static_cast<uint32_t>(load) * kTogether + lane / kLanes];
#pragma unroll
            for (int head = 0; head < kHeads; ++head)
#pragma unroll
                for (int index = 0; index < 8; ++index)
                    running.sums[head][index] =
                        fmaf(shares[head], value[index], running.sums[head][index]);
        }
    }
    static __device__ uint32_t first_tile(const Part& part) {
        return part.begin + threadIdx.x / 32 * kTile;
    }

    static __device__ void share(Running& running, Shared& shared) {
        const uint32_t warp = threadIdx.x / 32;
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t head = 0; head < 2; ++head) {
#pragma unroll
            for (int mask = 4; mask < 32; mask <<= 1)
                running.weight[head] += shuffle_xor(running.weight[head], mask);
            const uint32_t column = lane * 2 + head;
            if (lane < 4 && column < kHeads) {
                shared.largest[warp][column] = running.largest[head];
                shared.weight[warp][column] = running.weight[head];
            }
        }
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
#pragma unroll
            for (int mask = kLanes; mask < 32; mask <<= 1)
#pragma unroll
                for (int index = 0; index < 8; ++index)
                    running.sums[head][index] += shuffle_xor(running.sums[head][index], mask);
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
            float* partial = p.partial + (at * p.splits + split) * (kDim + kPartialExtra);
            partial[place] = sum;
            if (place == 0) {
                partial[kDim] = largest;
                partial[kDim + 1] = weight;
            }
        }
    }

    static __device__ void clear(Running& running) {
#pragma unroll
        for (int head = 0; head < 2; ++head) {
            running.largest[head] = kMinusInfinity;
            running.weight[head] = 0;
        }
#pragma unroll
        for (int head = 0; head < kHeads; ++head)
#pragma unroll
            for (int index = 0; index < 8; ++index)
                running.sums[head][index] = 0;
    }

    static __device__ void run(const AttendParams& p, Shared& shared) {
        release_next();
        wait_for_previous();
        const Part part = find(p);
        Running running;
        clear(running);
        if (part.begin < part.end) {
            Queries q;
            load_queries(
                reinterpret_cast<const uint4*>(
                    p.q + (static_cast<uint64_t>(part.row) * p.heads + part.first_head) * kDim),
                part.heads, q);
            for (uint32_t tile = first_tile(part); tile < part.end; tile += kStride) {
                Tile loaded;
                load(p, part, tile, part.end, loaded);
                work_on(loaded, tile, part.end, p.scale, q, running, shared);
            }
        }
        share(running, shared);
        barrier();
        finish(p, part.row, part.split, part.first_head, part.heads, shared);
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
    const float* partial = p.partial + at * p.splits * (kDim + kPartialExtra);
    if (threadIdx.x < p.splits) {
        shared.largest[threadIdx.x] = partial[threadIdx.x * (kDim + kPartialExtra) + kDim];
        shared.weight[threadIdx.x] = partial[threadIdx.x * (kDim + kPartialExtra) + kDim + 1];
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
        sum = fmaf(partial[split * (kDim + kPartialExtra) + threadIdx.x], part, sum);
        weight = fmaf(shared.weight[split], part, weight);
    }
    p.to[at * kDim + threadIdx.x] = to_bf16(weight > 0 ? sum / weight : 0.0F);
}

} // namespace berth::engine::fast
