// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "head_math.cuh"

// What lies between the products: embedding, norms, rotation and storing of keys, activation, the
// largest logit. Everything is computed in float32 and rounded once.
namespace berth::engine::fast {

constexpr int kSmallThreads = 256;
constexpr int kSmallWarps = kSmallThreads / 32;

// One group for each row.
__device__ inline void embed(const EmbedParams& p) {
    release_next();
    wait_for_previous();
    const uint32_t row = blockIdx.x;
    const auto token = static_cast<uint32_t>(p.tokens[row]);
    const Bf16* from = p.embedding + static_cast<uint64_t>(token) * p.hidden;
    float* to = p.residual + static_cast<uint64_t>(row) * p.hidden;
    for (uint32_t at = threadIdx.x; at < p.hidden; at += kSmallThreads)
        to[at] = from_bf16(from[at]);
    const auto position = static_cast<float>(p.positions[row]);
    float* rope = p.rope + static_cast<uint64_t>(row) * p.half * 2;
    for (uint32_t at = threadIdx.x; at < p.half; at += kSmallThreads) {
        float sine = 0;
        float cosine = 0;
        sine_cosine(position * p.inverse[at], sine, cosine);
        rope[2 * at] = cosine * p.rope_scale;
        rope[2 * at + 1] = sine * p.rope_scale;
    }
    if (row == 0)
        for (uint32_t at = threadIdx.x; at < p.key_count; at += kSmallThreads)
            p.keys[at] = 0;
    for (uint32_t at = row * kSmallThreads + threadIdx.x; at < p.arrived_count;
         at += gridDim.x * kSmallThreads)
        p.arrived[at] = 0;
}

// One group for each row that is wanted. What a thread has read it keeps, up to a width of 4,096.
__device__ inline void norm(const NormParams& p, float (&shared)[kSmallWarps]) {
    constexpr int kKept = 4; // of 4 places
    release_next();
    const uint32_t row =
        p.rows_at != nullptr ? static_cast<uint32_t>(p.rows_at[blockIdx.x]) : blockIdx.x;
    const float4* from =
        reinterpret_cast<const float4*>(p.from + static_cast<uint64_t>(row) * p.hidden);
    const uint2* weight = reinterpret_cast<const uint2*>(p.weight);
    uint2* to = reinterpret_cast<uint2*>(p.to + static_cast<uint64_t>(blockIdx.x) * p.hidden);
    const uint32_t count = p.hidden / 4;
    float4 kept[kKept];
    uint2 weights[kKept];
#pragma unroll
    for (uint32_t each = 0; each < kKept; ++each) {
        const uint32_t at = each * kSmallThreads + threadIdx.x;
        weights[each] = at < count ? weight[at] : uint2{0, 0};
    }
    wait_for_previous();
    float sum = 0;
    const auto add = [&sum](float4 x) {
        sum = fmaf(x.x, x.x, sum);
        sum = fmaf(x.y, x.y, sum);
        sum = fmaf(x.z, x.z, sum);
        sum = fmaf(x.w, x.w, sum);
    };
#pragma unroll
    for (uint32_t each = 0; each < kKept; ++each) {
        const uint32_t at = each * kSmallThreads + threadIdx.x;
        kept[each] = at < count ? from[at] : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (const float4 x : kept)
        add(x);
#pragma unroll 1
    for (uint32_t at = kKept * kSmallThreads + threadIdx.x; at < count; at += kSmallThreads)
        add(from[at]);
    sum = sum_of_group<kSmallWarps>(sum, shared);
    const float factor = inverse_root(sum / static_cast<float>(p.hidden) + p.epsilon);
    const auto scaled = [factor](float4 x, uint2 by) {
        return uint2{pack_bf16(x.x * factor * low_of(by.x), x.y * factor * high_of(by.x)),
                     pack_bf16(x.z * factor * low_of(by.y), x.w * factor * high_of(by.y))};
    };
#pragma unroll
    for (uint32_t each = 0; each < kKept; ++each) {
        const uint32_t at = each * kSmallThreads + threadIdx.x;
        if (at < count)
            to[at] = scaled(kept[each], weights[each]);
    }
#pragma unroll 1
    for (uint32_t at = kKept * kSmallThreads + threadIdx.x; at < count; at += kSmallThreads)
        to[at] = scaled(from[at], weight[at]);
}

// A warp for each head of a row.
template <int kDim>
__device__ void rope_store(const RopeParams& p) {
    constexpr int kEach = kDim / 32;
    release_next();
    wait_for_previous();
    const uint32_t row = p.first_row + blockIdx.x;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t heads = p.from.heads;
    const uint32_t kv_heads = p.from.kv_heads;
    const uint32_t index = blockIdx.y * kSmallWarps + threadIdx.x / 32;
    const int32_t position = p.positions[row];
    if (index >= heads + 2 * kv_heads || position < 0)
        return;
    float x[kEach];
    head_of<kDim>(p.from, row, index, x);
    Bf16* to = nullptr;
    if (index < heads) {
        to = p.q + (static_cast<uint64_t>(row) * heads + index) * kDim;
    } else {
        const uint32_t kind = index < heads + kv_heads ? 0 : 1;
        const uint32_t head = index - heads - kind * kv_heads;
        const auto token = static_cast<uint32_t>(position);
        const Bf16* plane =
            page_of(p.pages, p.pages.header->table_pitch, static_cast<uint32_t>(p.sequences[row]),
                    token, 2 * p.layer + kind);
        to = const_cast<Bf16*>(plane) +
             static_cast<uint64_t>(token % p.pages.block_tokens * kv_heads + head) * kDim;
    }
#pragma unroll
    for (int each = 0; each < kEach; ++each)
        to[lane + 32 * static_cast<uint32_t>(each)] = to_bf16(x[each]);
}

// Two places a thread; groups along a row, rows across.
__device__ inline void silu_times(const SiluParams& p) {
    release_next();
    wait_for_previous();
    const uint32_t at = (blockIdx.x * kSmallThreads + threadIdx.x) * 2;
    if (at >= p.width)
        return;
    const uint64_t row = blockIdx.y;
    const Bf16* from = p.from + row * 2 * p.width + at;
    const uint32_t gate = *reinterpret_cast<const uint32_t*>(from);
    const uint32_t up = *reinterpret_cast<const uint32_t*>(from + p.width);
    const auto silu = [](float x) { return x / (1.0F + power_of_two(x * -1.44269504F)); };
    *reinterpret_cast<uint32_t*>(p.to + row * p.width + at) =
        pack_bf16(silu(low_of(gate)) * low_of(up), silu(high_of(gate)) * high_of(up));
}

// One group for each row.
__device__ inline void gather(const GatherParams& p) {
    release_next();
    wait_for_previous();
    const uint32_t index = blockIdx.x;
    uint32_t item = 0;
    while (item + 1 < p.items && static_cast<uint32_t>(p.starts[item + 1]) <= index)
        ++item;
    const uint32_t token = index - static_cast<uint32_t>(p.starts[item]);
    const Bf16* keys = page_of(p.pages, p.pages.header->table_pitch,
                               static_cast<uint32_t>(p.sequences[item]), token, 2 * p.layer) +
                       static_cast<uint64_t>(token % p.pages.block_tokens) * p.row;
    const uint64_t to = static_cast<uint64_t>(index) * p.row;
    for (uint32_t at = threadIdx.x * 8; at < p.row; at += blockDim.x * 8) {
        *reinterpret_cast<uint4*>(p.keys + to + at) = load_once(keys + at);
        *reinterpret_cast<uint4*>(p.values + to + at) = load_once(keys + p.pages.plane_stride + at);
    }
}

// The largest of a slice of a row. A tie goes to the smallest token.
__device__ inline void largest(const LargestParams& p, uint64_t (&shared)[kSmallWarps]) {
    release_next();
    wait_for_previous();
    const uint32_t row = blockIdx.y;
    const float* logits = p.logits + static_cast<uint64_t>(row) * p.width;
    uint64_t best = 0;
    for (uint32_t at = blockIdx.x * kSmallThreads + threadIdx.x; at < p.width;
         at += p.slices * kSmallThreads) {
        const uint32_t bits = as_bits(logits[at]);
        const uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
        const uint64_t key = static_cast<uint64_t>(ordered) << 32 | (0xffffffffU - at);
        best = key > best ? key : best;
    }
    for (int mask = 16; mask > 0; mask >>= 1) {
        const uint64_t other = shuffle_xor(best, mask);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = best;
    barrier();
    if (threadIdx.x != 0)
        return;
    for (int warp = 1; warp < kSmallWarps; ++warp)
        best = shared[warp] > best ? shared[warp] : best;
    keep_largest(p.keys + row, best);
}

// Four places a thread.
__device__ inline void dequantise(const DequantiseParams& p) {
    release_next();
    wait_for_previous();
    const uint64_t at = (static_cast<uint64_t>(blockIdx.x) * kSmallThreads + threadIdx.x) * 4;
    const uint32_t row = static_cast<uint32_t>(at / p.k);
    if (row >= p.n)
        return;
    const uint32_t column = static_cast<uint32_t>(at % p.k);
    const float scale =
        p.scales[static_cast<uint64_t>(row / 128) * ((p.k + 127) / 128) + column / 128];
    const uint32_t four = *reinterpret_cast<const uint32_t*>(p.from + at);
    uint32_t to[2];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        const uint32_t two = spread_bytes(four, pair);
        const uint32_t bits =
            multiply_bf16x2((two & 0x00800080U) << 8 | (two & 0x007f007fU) << 4, 0x7b807b80U);
        to[pair] = pack_bf16(low_of(bits) * scale, high_of(bits) * scale);
    }
    *reinterpret_cast<uint2*>(p.to + at) = uint2{to[0], to[1]};
}

// Reads all of it; for the floor that other figures are compared with.
__device__ inline void read_all(const ReadParams& p) {
    const auto* from = static_cast<const uint4*>(p.from);
    const uint64_t count = p.bytes / 16;
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    uint32_t mixed = 0;
    uint64_t at = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; at + 3 * stride < count; at += 4 * stride) {
        uint4 words[4];
#pragma unroll
        for (int index = 0; index < 4; ++index)
            words[index] = load_once(from + at + static_cast<uint64_t>(index) * stride);
#pragma unroll
        for (int index = 0; index < 4; ++index)
            mixed ^= words[index].x ^ words[index].y ^ words[index].z ^ words[index].w;
    }
    for (; at < count; at += stride) {
        const uint4 words = load_once(from + at);
        mixed ^= words.x ^ words.y ^ words.z ^ words.w;
    }
    if (mixed == 0x5bd1e995U)
        p.to[blockIdx.x] = mixed;
}

} // namespace berth::engine::fast
