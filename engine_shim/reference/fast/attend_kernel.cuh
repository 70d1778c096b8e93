// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "head_math.cuh"

// Attention of one query over paged keys and values, for the query heads that share a key head. The
// context is cut into splits, one group of threads each, so that a single sequence keeps the whole
// device busy; attend_merge() puts the pieces together, or the piece that is done last. Scores are
// powers of two throughout.
//
// run_all() does what lies before and behind it too: it makes queries, and the newest key and
// value, out of what the product has left, stores these in their page, and merges. What it reads of
// the context was there before the step began, so the first of it is asked for before the product
// ends.
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
        // Of run_all() alone.
        uint4 queries[kHeads][kDim / 8];
        uint4 newest[2][kDim / 8]; // key and value
        float factors[kHeads][kSplitsMax];
        float weights[kHeads][kSplitsMax];
        uint32_t is_last;
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
        uint4 keys[kLoads];
        uint4 values[kLoads];
    };
    static __device__ uint32_t token_of(uint32_t tile, int load) {
        return tile + static_cast<uint32_t>(load) * kTogether + threadIdx.x % 32 / kLanes;
    }
    // What lies behind the end was never written: not even zero times it is zero.
    static __device__ void load(const AttendParams& p, const Part& part, uint32_t tile,
                                uint32_t end, Tile& to) {
        const int32_t pitch = p.pages.header->table_pitch;
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            const uint32_t token = token_of(tile, load);
            to.keys[load] = to.values[load] = uint4{0, 0, 0, 0};
            if (token < end) {
                const Bf16* plane = page_of(p.pages, pitch, part.row, token, 2 * p.layer);
                const uint64_t at =
                    static_cast<uint64_t>(token % p.pages.block_tokens * p.pages.kv_heads +
                                          part.kv_head) *
                        kDim +
                    threadIdx.x % kLanes * 8;
                to.keys[load] = load_once(plane + at);
                to.values[load] = load_once(plane + p.pages.plane_stride + at);
            }
        }
    }
    static __device__ void work_on(const Tile& loaded, uint32_t tile, uint32_t end,
                                   const float (&q)[kHeads][8], Running& running) {
        bool there[kLoads];
#pragma unroll
        for (int load = 0; load < kLoads; ++load)
            there[load] = token_of(tile, load) < end;
        float scores[kLoads][kHeads];
        score(loaded.keys, q, there, scores);
        take(loaded.values, scores, running);
    }
    static constexpr uint32_t kStride = kWarps * kTile; // a tile for each warp in turn
    static __device__ uint32_t first_tile(const Part& part) {
        return part.begin + threadIdx.x / 32 * kTile;
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

    static __device__ void clear(Running& running) {
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
            running.largest[head] = kMinusInfinity;
            running.weight[head] = 0;
#pragma unroll
            for (int index = 0; index < 8; ++index)
                running.sums[head][index] = 0;
        }
    }

    static __device__ void run(const AttendParams& p, Shared& shared) {
        release_next();
        wait_for_previous();
        const Part part = find(p);
        Running running;
        clear(running);
        if (part.begin < part.end) {
            float q[kHeads][8];
            load_queries(p, part.row, part.first_head, part.heads, q);
            for (uint32_t tile = first_tile(part); tile < part.end; tile += kStride) {
                Tile loaded;
                load(p, part, tile, part.end, loaded);
                work_on(loaded, tile, part.end, q, running);
            }
        }
        share(running, shared);
        barrier();
        finish(p, part.row, part.split, part.first_head, part.heads, shared);
    }

    // A warp for each query, and two for the newest key and value where they are this part's.
    static __device__ void make_heads(const AttendParams& p, const Part& part, Shared& shared) {
        const uint32_t lane = threadIdx.x % 32;
        const auto token = static_cast<uint32_t>(part.position);
        const bool has_newest = part.begin <= token && token < part.end;
        for (uint32_t task = threadIdx.x / 32; task < part.heads + (has_newest ? 2 : 0);
             task += kWarps) {
            const bool is_query = task < part.heads;
            const uint32_t kind = is_query ? 0 : task - part.heads;
            float x[kDim / 32];
            head_of<kDim>(p.heads_from, part.row,
                          is_query ? part.first_head + task
                                   : p.heads + kind * p.pages.kv_heads + part.kv_head,
                          x);
            auto* to =
                reinterpret_cast<Bf16*>(is_query ? shared.queries[task] : shared.newest[kind]);
            Bf16* stored = nullptr;
            if (!is_query)
                stored = const_cast<Bf16*>(page_of(p.pages, p.pages.header->table_pitch, part.row,
                                                   token, 2 * p.layer + kind)) +
                         static_cast<uint64_t>(token % p.pages.block_tokens * p.pages.kv_heads +
                                               part.kv_head) *
                             kDim;
#pragma unroll
            for (int each = 0; each < kDim / 32; ++each) {
                const uint32_t place = lane + 32 * static_cast<uint32_t>(each);
                to[place] = to_bf16(x[each]);
                if (!is_query)
                    stored[place] = to[place];
            }
        }
    }

    static __device__ void take_newest(const Part& part, uint32_t tile, const Shared& shared,
                                       Tile& to) {
#pragma unroll
        for (int load = 0; load < kLoads; ++load)
            if (token_of(tile, load) == static_cast<uint32_t>(part.position)) {
                to.keys[load] = shared.newest[0][threadIdx.x % kLanes];
                to.values[load] = shared.newest[1][threadIdx.x % kLanes];
            }
    }

    static __device__ void run_all(const AttendParams& p, Shared& shared) {
        release_next();
        const Part part = find(p);
        const auto stored = static_cast<uint32_t>(part.position < 0 ? 0 : part.position);
        const uint32_t old_end = part.end < stored ? part.end : stored;
        uint32_t tile = first_tile(part);
        Tile loaded;
        load(p, part, tile, old_end, loaded);
        wait_for_previous();
        Running running;
        clear(running);
        if (part.begin < part.end) {
            make_heads(p, part, shared);
            barrier();
            float q[kHeads][8];
#pragma unroll
            for (int head = 0; head < kHeads; ++head) {
                const bool there = static_cast<uint32_t>(head) < part.heads;
                unpack(there ? shared.queries[head][threadIdx.x % kLanes] : uint4{0, 0, 0, 0},
                       q[head]);
#pragma unroll
                for (int index = 0; index < 8; ++index)
                    q[head][index] *= p.scale;
            }
            for (; tile < part.end; tile += kStride) {
                take_newest(part, tile, shared, loaded);
                work_on(loaded, tile, part.end, q, running);
                load(p, part, tile + kStride, old_end, loaded);
            }
        }
        share(running, shared);
        barrier();
        finish(p, part.row, part.split, part.first_head, part.heads, shared);
        if (p.splits > 1 && is_last(p, part, shared))
            merge(p, part, shared);
    }

    // Whether all other pieces of these heads are done; what they have left can be read then.
    static __device__ bool is_last(const AttendParams& p, const Part& part, Shared& shared) {
        fence();
        barrier();
        uint32_t* arrived = p.arrived + part.row * gridDim.x + blockIdx.x;
        if (threadIdx.x == 0) {
            shared.is_last = count_up(arrived) + 1 == p.splits ? 1 : 0;
            if (shared.is_last != 0)
                *arrived = 0;
        }
        barrier();
        if (shared.is_last != 0)
            fence();
        return shared.is_last != 0;
    }

    static __device__ void merge(const AttendParams& p, const Part& part, Shared& shared) {
        const uint64_t first =
            (static_cast<uint64_t>(part.row) * p.heads + part.first_head) * p.splits;
        for (uint32_t index = threadIdx.x; index < part.heads * p.splits; index += kThreads) {
            const float* partial = p.partial + (first + index) * (kDim + 2);
            shared.factors[index / p.splits][index % p.splits] = load_fresh(partial + kDim);
            shared.weights[index / p.splits][index % p.splits] = load_fresh(partial + kDim + 1);
        }
        barrier();
        for (uint32_t index = threadIdx.x; index < part.heads * kDim; index += kThreads) {
            const uint32_t head = index / kDim;
            const uint32_t place = index % kDim;
            const float* partial =
                p.partial + (first + static_cast<uint64_t>(head) * p.splits) * (kDim + 2) + place;
            float largest = kMinusInfinity;
            for (uint32_t split = 0; split < p.splits; ++split)
                largest = fmaxf(largest, shared.factors[head][split]);
            float sum = 0;
            float weight = 0;
#pragma unroll 8
            for (uint32_t split = 0; split < p.splits; ++split) {
                // Empty pieces weigh nothing, and what they summed is zero.
                const float mine = shared.weights[head][split];
                const float factor =
                    mine > 0 ? power_of_two(shared.factors[head][split] - largest) : 0.0F;
                sum = fmaf(load_fresh(partial + split * (kDim + 2)), factor, sum);
                weight = fmaf(mine, factor, weight);
            }
            p.to[(static_cast<uint64_t>(part.row) * p.heads + part.first_head + head) * kDim +
                 place] = to_bf16(weight > 0 ? sum / weight : 0.0F);
        }
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
