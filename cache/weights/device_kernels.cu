// SPDX-License-Identifier: Apache-2.0
// The kernels of device_kernels.h: block-wise FP8 quantisation (quantise.h has the arithmetic) and
// the checksums' block hashes. Compiled to a fatbin that is embedded into the library and loaded
// through the driver; nothing here runs on the host.
#include <cstdint>

#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace {

constexpr uint32_t kAllThreads = 0xffffffffU;

// ---- Quantisation: one group of threads for each block of 128 x 128. The block stays in registers
// between the search for its largest element and the rounding, so that memory is read once.

constexpr uint32_t kBlock = 128;
constexpr uint32_t kThreads = 256;
constexpr uint32_t kRun = 8; // adjacent elements that a thread loads and stores at once
constexpr uint32_t kRunsPerRow = kBlock / kRun;
constexpr uint32_t kRuns = kBlock * kRunsPerRow / kThreads; // of one thread

struct Bf16 {
    static constexpr uint32_t kBytes = 2;
    static constexpr uint32_t kInfinity = 0x7f80U;
    static __device__ float value(uint32_t bits) { return __uint_as_float(bits << 16); }
};
struct F16 {
    static constexpr uint32_t kBytes = 2;
    static constexpr uint32_t kInfinity = 0x7c00U;
    static __device__ float value(uint32_t bits) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    }
};
struct F32 {
    static constexpr uint32_t kBytes = 4;
    static constexpr uint32_t kInfinity = 0x7f800000U;
    static __device__ float value(uint32_t bits) { return __uint_as_float(bits); }
};

// Eight elements as they lie in memory.
template <typename Element>
struct Run {
    static constexpr uint32_t kWords = kRun * Element::kBytes / 4;
    uint32_t words[kWords];

    __device__ uint32_t bits_at(uint32_t index) const {
        if constexpr (Element::kBytes == 4)
            return words[index];
        else
            return words[index / 2] >> (16 * (index & 1)) & 0xffffU;
    }
    __device__ float at(uint32_t index) const { return Element::value(bits_at(index)); }
    __device__ uint32_t magnitude_at(uint32_t index) const {
        return bits_at(index) & (Element::kBytes == 4 ? 0x7fffffffU : 0x7fffU);
    }
    // The larger of `largest` and all magnitudes: they grow with their bits. Of elements of two
    // bytes both halves of `largest` are searched at once.
    __device__ uint32_t larger(uint32_t largest) const {
#pragma unroll
        for (uint32_t word = 0; word < kWords; ++word) {
            if constexpr (Element::kBytes == 4)
                largest = max(largest, words[word] & 0x7fffffffU);
            else
                largest = __vmaxu2(largest, words[word] & 0x7fff7fffU);
        }
        return largest;
    }
    __device__ void load_whole(const unsigned char* from) {
#pragma unroll
        for (uint32_t part = 0; part < kWords / 4; ++part) {
            uint4 four = __ldcs(reinterpret_cast<const uint4*>(from) + part);
            words[4 * part] = four.x;
            words[4 * part + 1] = four.y;
            words[4 * part + 2] = four.z;
            words[4 * part + 3] = four.w;
        }
    }
    __device__ void load_some(const unsigned char* from, uint32_t count) {
#pragma unroll
        for (uint32_t word = 0; word < kWords; ++word)
            words[word] = 0;
#pragma unroll
        for (uint32_t index = 0; index < kRun; ++index) {
            if (index >= count)
                continue;
            if constexpr (Element::kBytes == 4)
                words[index] = reinterpret_cast<const uint32_t*>(from)[index];
            else
                words[index / 2] |=
                    static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[index])
                    << (16 * (index & 1));
        }
    }
};

// The largest of all threads' numbers, for all threads. `shared` has a place for each warp.
__device__ uint32_t max_of_group(uint32_t mine, uint32_t* shared) {
    mine = __reduce_max_sync(kAllThreads, mine);
    __syncthreads(); // the last call's readers are done
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = mine;
    __syncthreads();
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < kThreads / 32; ++warp)
        largest = max(largest, shared[warp]);
    return largest;
}

struct Job {
    const unsigned char* rows;
    uint64_t pitch;
    uint64_t row_count;
    uint64_t columns;
    unsigned char* fp8;
    float* scales;
    unsigned long long* non_finite;
};

template <typename Element>
__device__ void store_run(const Run<Element>& run, float inverse, unsigned char* to, uint32_t count,
                          bool at_once) {
    uint32_t packed[2] = {0, 0};
#pragma unroll
    for (uint32_t pair = 0; pair < kRun / 2; ++pair) {
        float2 two = make_float2(__fmul_rn(run.at(2 * pair), inverse),
                                 __fmul_rn(run.at(2 * pair + 1), inverse));
        uint32_t bytes = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
        packed[pair / 2] |= bytes << (16 * (pair & 1));
    }
    if (at_once) {
        *reinterpret_cast<uint2*>(to) = make_uint2(packed[0], packed[1]);
        return;
    }
#pragma unroll
    for (uint32_t index = 0; index < kRun; ++index)
        if (index < count)
            to[index] = static_cast<unsigned char>(packed[index / 4] >> (8 * (index & 3)));
}

// Rare: the block holds NaN or infinity. Counts them and finds the largest of the others.
template <typename Element>
__device__ uint32_t count_non_finite(const Run<Element> (&runs)[kRuns], const Job& job,
                                     uint32_t* shared) {
    uint32_t largest = 0;
    uint32_t found = 0;
#pragma unroll
    for (uint32_t index = 0; index < kRuns * kRun; ++index) {
        uint32_t magnitude = runs[index / kRun].magnitude_at(index % kRun);
        if (magnitude >= Element::kInfinity)
            ++found;
        else
            largest = max(largest, magnitude);
    }
    found = __reduce_add_sync(kAllThreads, found);
    if (threadIdx.x % 32 == 0 && found != 0)
        atomicAdd(job.non_finite, static_cast<unsigned long long>(found));
    return max_of_group(largest, shared);
}

template <typename Element>
__device__ void quantise_block(const Job& job) {
    __shared__ uint32_t shared[kThreads / 32];
    uint64_t tiles_across = (job.columns + kBlock - 1) / kBlock;
    uint64_t first_row = blockIdx.x / tiles_across * kBlock;
    uint64_t column = blockIdx.x % tiles_across * kBlock + threadIdx.x % kRunsPerRow * kRun;
    uint32_t count = 0; // of a run's elements that the tensor has
    if (column < job.columns)
        count = static_cast<uint32_t>(min(static_cast<uint64_t>(kRun), job.columns - column));
    bool loads_whole =
        count == kRun && reinterpret_cast<uint64_t>(job.rows) % 16 == 0 && job.pitch % 16 == 0;
    bool stores_whole =
        count == kRun && reinterpret_cast<uint64_t>(job.fp8) % 8 == 0 && job.columns % 8 == 0;

    Run<Element> runs[kRuns];
#pragma unroll
    for (uint32_t step = 0; step < kRuns; ++step) {
        uint64_t row = first_row + threadIdx.x / kRunsPerRow + step * (kThreads / kRunsPerRow);
        const unsigned char* from = job.rows + row * job.pitch + column * Element::kBytes;
        if (loads_whole && row < job.row_count)
            runs[step].load_whole(from);
        else
            runs[step].load_some(from, row < job.row_count ? count : 0);
    }
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t step = 0; step < kRuns; ++step)
        largest = runs[step].larger(largest);
    if constexpr (Element::kBytes == 2)
        largest = max(largest & 0xffffU, largest >> 16);
    largest = max_of_group(largest, shared);
    if (largest >= Element::kInfinity)
        largest = count_non_finite(runs, job, shared);

    float scale = 1.0F;
    float inverse = 1.0F;
    if (largest != 0) {
        float amax = fmaxf(Element::value(largest), 0x1p-117F);
        scale = __fdiv_rn(amax, 448.0F);
        inverse = __fdiv_rn(448.0F, amax);
    }
    if (threadIdx.x == 0)
        job.scales[blockIdx.x] = scale;
#pragma unroll
    for (uint32_t step = 0; step < kRuns; ++step) {
        uint64_t row = first_row + threadIdx.x / kRunsPerRow + step * (kThreads / kRunsPerRow);
        if (row < job.row_count)
            store_run(runs[step], inverse, job.fp8 + row * job.columns + column, count,
                      stores_whole);
    }
}

// ---- Block hashes: XXH3-64 without a seed, of up to 64 KiB each. Four threads share a block, each
// has two of the algorithm's eight accumulators; eight blocks a warp, so that loads are of 64
// adjacent bytes, sixteen under way in each thread.

constexpr uint64_t kHashBlockBytes = uint64_t{64} << 10;
constexpr uint64_t kShortBytes = 240; // up to here the algorithm is another: the host does these
constexpr uint32_t kStripes = 16;     // of 64 bytes, between two scrambles
constexpr uint64_t kPrime32 = 0x9E3779B1U;
constexpr uint64_t kPrime64 = 0x9E3779B185EBCA87U;

// The algorithm's fixed key, as little-endian words.
__constant__ uint64_t kKey[24] = {
    0xbe4ba423396cfeb8U, 0x1cad21f72c81017cU, 0xdb979083e96dd4deU, 0x1f67b3b7a4a44072U,
    0x78e5c0cc4ee679cbU, 0x2172ffcc7dd05a82U, 0x8e2443f7744608b8U, 0x4c263a81e69035e0U,
    0xcb00c391bb52283cU, 0xa32e531b8b65d088U, 0x4ef90da297486471U, 0xd8acdea946ef1938U,
    0x3f349ce33f76faa8U, 0x1d4f0bc7c7bbdcf9U, 0x3159b4cd4be0518aU, 0x647378d9c97e9fc8U,
    0xc3ebd33483acc5eaU, 0xeb6313faffa081c5U, 0x49daf0b751dd0d17U, 0x9e68d429265516d3U,
    0xfca1477d58be162bU, 0xce31d07ad1b8f88fU, 0x280416958f3acb45U, 0x7e404bbbcafbd7afU};

struct Accumulators {
    uint64_t even;
    uint64_t odd;

    __device__ void add(ulonglong2 data, uint64_t key_even, uint64_t key_odd) {
        uint64_t mixed_even = data.x ^ key_even;
        uint64_t mixed_odd = data.y ^ key_odd;
        even += data.y + (mixed_even & 0xffffffffU) * (mixed_even >> 32);
        odd += data.x + (mixed_odd & 0xffffffffU) * (mixed_odd >> 32);
    }
    __device__ void scramble(uint64_t key_even, uint64_t key_odd) {
        even = (even ^ even >> 47 ^ key_even) * kPrime32;
        odd = (odd ^ odd >> 47 ^ key_odd) * kPrime32;
    }
};

// Eight bytes of the key from a byte that no word starts at.
__device__ uint64_t key_at(uint32_t byte) {
    uint32_t shift = byte % 8 * 8;
    return kKey[byte / 8] >> shift | kKey[byte / 8 + 1] << (64 - shift);
}

__device__ uint64_t bytes_at(const unsigned char* from) {
    uint64_t word = 0;
#pragma unroll
    for (uint32_t byte = 0; byte < 8; ++byte)
        word |= static_cast<uint64_t>(from[byte]) << (8 * byte);
    return word;
}

__device__ uint64_t fold(uint64_t a, uint64_t b) {
    return a * b ^ __umul64hi(a, b);
}

// Both accumulators of this thread after all of the block, which has more than kShortBytes.
__device__ Accumulators accumulate(const unsigned char* block, uint64_t bytes, uint32_t lane) {
    constexpr uint64_t kStart[8] = {
        0xC2B2AE3DU,         kPrime64,    0xC2B2AE3D27D4EB4FU, 0x165667B19E3779F9U,
        0x85EBCA77C2B2AE63U, 0x85EBCA77U, 0x27D4EB2F165667C5U, kPrime32};
    Accumulators sums{kStart[0], kStart[1]};
#pragma unroll
    for (uint32_t other = 1; other < 4; ++other)
        if (lane == other)
            sums = {kStart[2 * other], kStart[2 * other + 1]};
    uint64_t key[kStripes + 2];
#pragma unroll
    for (uint32_t index = 0; index < kStripes + 2; ++index)
        key[index] = kKey[index + 2 * lane];

    const auto* at = reinterpret_cast<const ulonglong2*>(block) + lane;
    for (uint64_t left = (bytes - 1) / (64 * kStripes); left > 0; --left) {
        ulonglong2 data[kStripes];
#pragma unroll
        for (uint32_t stripe = 0; stripe < kStripes; ++stripe)
            data[stripe] = __ldcs(at + 4 * stripe);
#pragma unroll
        for (uint32_t stripe = 0; stripe < kStripes; ++stripe)
            sums.add(data[stripe], key[stripe], key[stripe + 1]);
        sums.scramble(key[kStripes], key[kStripes + 1]);
        at += 4 * kStripes;
    }
    uint32_t stripes = static_cast<uint32_t>((bytes - 1) % (64 * kStripes) / 64);
    for (uint32_t stripe = 0; stripe < stripes; ++stripe)
        sums.add(__ldcs(at + 4 * stripe), kKey[stripe + 2 * lane], kKey[stripe + 2 * lane + 1]);
    const unsigned char* last = block + bytes - 64 + 16 * lane;
    sums.add(make_ulonglong2(bytes_at(last), bytes_at(last + 8)), key_at(121 + 16 * lane),
             key_at(129 + 16 * lane));
    return sums;
}

struct Extent {
    const unsigned char* data;
    uint64_t bytes;
    uint64_t first_block; // number of its first block among those of all extents
    uint64_t short_slot;  // where the bytes of a short last block go
};

// The extent that holds a block: the last one that starts at or before it and has blocks.
__device__ const Extent& extent_of(const Extent* extents, uint64_t count, uint64_t block) {
    uint64_t low = 0;
    uint64_t high = count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (extents[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    return extents[low];
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 3) berth_quantise_bf16(Job job) {
    quantise_block<Bf16>(job);
}

extern "C" __global__ void __launch_bounds__(kThreads, 3) berth_quantise_f16(Job job) {
    quantise_block<F16>(job);
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) berth_quantise_f32(Job job) {
    quantise_block<F32>(job);
}

// hashes[i] is that of block first + i; bytes of short blocks go to 240 bytes each at `shorts`.
extern "C" __global__ void __launch_bounds__(64)
    berth_hash_blocks(const Extent* extents, uint64_t extent_count, uint64_t first, uint64_t count,
                      uint64_t* hashes, unsigned char* shorts) {
    uint32_t lane = threadIdx.x % 4;
    uint64_t index = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 4;
    uint64_t bytes = 0;
    uint64_t mixed = 0;
    if (index < count) {
        const Extent& extent = extent_of(extents, extent_count, first + index);
        uint64_t offset = (first + index - extent.first_block) * kHashBlockBytes;
        const unsigned char* block = extent.data + offset;
        bytes = min(kHashBlockBytes, extent.bytes - offset);
        if (bytes > kShortBytes) {
            Accumulators sums = accumulate(block, bytes, lane);
            mixed = fold(sums.even ^ key_at(11 + 16 * lane), sums.odd ^ key_at(19 + 16 * lane));
        } else {
            for (uint64_t byte = lane; byte < bytes; byte += 4)
                shorts[extent.short_slot * kShortBytes + byte] = block[byte];
        }
    }
    mixed += __shfl_xor_sync(kAllThreads, mixed, 1);
    mixed += __shfl_xor_sync(kAllThreads, mixed, 2);
    if (lane != 0 || bytes <= kShortBytes)
        return;
    uint64_t hash = mixed + bytes * kPrime64;
    hash ^= hash >> 37;
    hash *= 0x165667919E3779F9U;
    hashes[index] = hash ^ hash >> 32;
}
