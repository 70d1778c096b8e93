// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attend_kernel.cuh"

#include <type_traits>

// Attention with what lies before and behind it: makes the queries, and the newest key and value,
// out of what the product has left, stores these in their page, and lets the piece that is done
// last merge. What is read of the context was there before the step began, so the first of it is
// asked for before the product ends.
namespace berth::engine::fast {

template <int kDim, int kHeads>
struct AttendAll : AttendKernel<kDim, kHeads> {
    using Base = AttendKernel<kDim, kHeads>;
    using Base::kLanes;
    using Base::kLoads;
    using Base::kParts;
    using Base::kThreads;
    using Base::kTile;
    using Base::kWarps;
    using typename Base::Part;
    using typename Base::Queries;
    using typename Base::Running;
    using typename Base::Tile;

    struct Shared : Base::Shared {
        uint4 queries[kHeads][kDim / 8];
        uint4 newest[2][kDim / 8]; // key and value
        float factors[kHeads][kSplitsMax];
        float weights[kHeads][kSplitsMax];
        uint32_t is_last;
    };

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
                stored =
                    const_cast<Bf16*>(Base::at_token(p, part, token)) + kind * p.pages.plane_stride;
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
        const auto newest = static_cast<uint32_t>(part.position);
        if (newest < tile || newest >= tile + kTile)
            return;
#pragma unroll
        for (int row = 0; row < 2; ++row)
            if (Base::key_token(tile, row) == newest)
#pragma unroll
                for (int piece = 0; piece < kParts; ++piece)
                    to.keys[row][piece] =
                        shared.newest[0][static_cast<uint32_t>(piece) * 4 + threadIdx.x % 4];
#pragma unroll
        for (int load = 0; load < kLoads; ++load)
            if (Base::value_token(tile, load) == newest)
                to.values[load] = shared.newest[1][threadIdx.x % kLanes];
    }

    static __device__ void run(const AttendParams& p, Shared& shared) {
        release_next();
        const Part part = Base::find(p);
        const auto stored = static_cast<uint32_t>(part.position < 0 ? 0 : part.position);
        const uint32_t old_end = part.end < stored ? part.end : stored;
        uint32_t tile = Base::first_tile(part);
        Tile loaded;
        Base::load(p, part, tile, old_end, loaded);
        wait_for_previous();
        Running running;
        Base::clear(running);
        if (part.begin < part.end) {
            make_heads(p, part, shared);
            barrier();
            Queries q;
            Base::load_queries(shared.queries[0], part.heads, q);
            for (; tile < part.end; tile += Base::kStride) {
                take_newest(part, tile, shared, loaded);
                Base::work_on(loaded, tile, part.end, p.scale, q, running, shared);
                Base::load(p, part, tile + Base::kStride, old_end, loaded);
            }
        }
        Base::share(running, shared);
        barrier();
        Base::finish(p, part.row, part.split, part.first_head, part.heads, shared);
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

    // A warp for each head; lanes have its pieces first, then its places.
    static __device__ void merge(const AttendParams& p, const Part& part, Shared& shared) {
        constexpr uint32_t kPitch = kDim + kPartialExtra;
        constexpr uint32_t kAtOnce = 8;
        using Places = std::conditional_t<kDim == 128, float4, float2>;
        const uint32_t lane = threadIdx.x % 32;
        for (uint32_t head = threadIdx.x / 32; head < part.heads; head += kWarps) {
            const uint64_t at = static_cast<uint64_t>(part.row) * p.heads + part.first_head + head;
            const float* partial = p.partial + at * p.splits * kPitch;
            float mine[2] = {kMinusInfinity, kMinusInfinity};
#pragma unroll
            for (uint32_t turn = 0; turn < 2; ++turn) {
                const uint32_t split = turn * 32 + lane;
                if (split < p.splits) {
                    const auto both = load_fresh(
                        reinterpret_cast<const float2*>(partial + split * kPitch + kDim));
                    mine[turn] = both.y > 0 ? both.x : kMinusInfinity;
                    shared.weights[head][split] = both.y;
                }
            }
            float largest = fmaxf(mine[0], mine[1]);
#pragma unroll
            for (int mask = 1; mask < 32; mask <<= 1)
                largest = fmaxf(largest, shuffle_xor(largest, mask));
            // Empty pieces weigh nothing, and what they summed is zero.
#pragma unroll
            for (uint32_t turn = 0; turn < 2; ++turn)
                if (turn * 32 + lane < p.splits)
                    shared.factors[head][turn * 32 + lane] =
                        mine[turn] > kMinusInfinity ? power_of_two(mine[turn] - largest) : 0.0F;
            barrier_of_warp();
            float sums[kDim / 32] = {};
            float weight = 0;
#pragma unroll 1
            for (uint32_t first = 0; first < p.splits; first += kAtOnce) {
                Places loaded[kAtOnce];
#pragma unroll
                for (uint32_t each = 0; each < kAtOnce; ++each)
                    loaded[each] = first + each < p.splits
                                       ? load_fresh(reinterpret_cast<const Places*>(
                                                        partial + (first + each) * kPitch) +
                                                    lane)
                                       : Places{};
#pragma unroll
                for (uint32_t each = 0; each < kAtOnce; ++each) {
                    if (first + each >= p.splits)
                        break;
                    const float factor = shared.factors[head][first + each];
                    add_scaled(loaded[each], factor, sums);
                    weight = fmaf(shared.weights[head][first + each], factor, weight);
                }
            }
            Bf16* to = p.to + at * kDim + lane * (kDim / 32);
#pragma unroll
            for (int place = 0; place < kDim / 32; ++place)
                to[place] = to_bf16(weight > 0 ? sums[place] / weight : 0.0F);
        }
    }
    static __device__ void add_scaled(float4 places, float factor, float (&sums)[4]) {
        sums[0] = fmaf(places.x, factor, sums[0]);
        sums[1] = fmaf(places.y, factor, sums[1]);
        sums[2] = fmaf(places.z, factor, sums[2]);
        sums[3] = fmaf(places.w, factor, sums[3]);
    }
    static __device__ void add_scaled(float2 places, float factor, float (&sums)[2]) {
        sums[0] = fmaf(places.x, factor, sums[0]);
        sums[1] = fmaf(places.y, factor, sums[1]);
    }
};

} // namespace berth::engine::fast
