// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

// Runs the engine's kernels on a CPU, so that their indices and sums can be checked where there is
// no GPU: each thread of a group is a fibre, and what the device does for a warp at once (shuffles,
// tensor cores) is done by fibres that wait for each other. Stands in for gpu_intrinsics.cuh and
// for the words that nvcc knows; to be included before the kernels. One thread of one test alone.
#define __device__
#define __global__
#define __forceinline__ inline

namespace berth::test {

struct Index3 {
    uint32_t x = 0, y = 0, z = 0;
};

// Of the fibre that runs now.
extern Index3 emulated_thread;
extern Index3 emulated_block;
extern Index3 emulated_threads;
extern Index3 emulated_blocks;

// Calls `kernel` as every thread of every group; groups one after the other.
void emulate(Index3 blocks, uint32_t threads, const std::function<void()>& kernel);

void wait_for_group();
// What lane `lane ^ mask` of this warp gave.
uint64_t exchange(uint64_t mine, int mask);

struct Operands {
    uint32_t a[4];
    uint32_t b[2];
};
void tensor_multiply(float (&sums)[4], const Operands& mine);

uint16_t round_to_bf16(float value);
inline float widen_bf16(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

} // namespace berth::test

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};

#define threadIdx ::berth::test::emulated_thread
#define blockIdx ::berth::test::emulated_block
#define blockDim ::berth::test::emulated_threads
#define gridDim ::berth::test::emulated_blocks

namespace berth::engine::fast {

using std::fmaf;
using std::fmaxf;

inline uint4 load_once(const void* from) {
    uint4 words;
    std::memcpy(&words, from, sizeof words);
    return words;
}
inline uint4 load_again(const void* from) {
    return load_once(from);
}
inline void copy_by_itself(uint4* to, const void* from, bool there) {
    *to = there ? load_once(from) : uint4{0, 0, 0, 0};
}
inline void copy_word_by_itself(float* to, const float* from) {
    *to = *from;
}
inline void end_of_copies() {}
template <int kLeft>
void wait_for_copies() {}
template <typename T>
T shuffle_xor(T value, int mask) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = test::exchange(bits, mask);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline void barrier() {
    test::wait_for_group();
}
inline void barrier_of_warp() {
    (void)test::exchange(0, 0);
}
inline void wait_for_previous() {}
inline void release_next() {}
inline void multiply_add(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                         uint32_t b0, uint32_t b1) {
    test::tensor_multiply(sums, {{a0, a1, a2, a3}, {b0, b1}});
}
inline uint32_t pack_bf16(float low, float high) {
    return test::round_to_bf16(low) | static_cast<uint32_t>(test::round_to_bf16(high)) << 16;
}
inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
    const auto half = [](uint32_t word, int shift) {
        return test::widen_bf16(static_cast<uint16_t>(word >> shift));
    };
    return pack_bf16(half(a, 0) * half(b, 0), half(a, 16) * half(b, 16));
}
inline uint32_t spread_bytes(uint32_t word, int which) {
    const uint32_t two = word >> (16 * which);
    return (two & 0xffU) | (two & 0xff00U) << 8;
}
inline float power_of_two(float x) {
    return std::exp2(x);
}
inline float inverse_root(float x) {
    return 1.0F / std::sqrt(x);
}
inline float as_float(uint32_t bits) {
    return std::bit_cast<float>(bits);
}
inline uint32_t as_bits(float x) {
    return std::bit_cast<uint32_t>(x);
}
inline void sine_cosine(float angle, float& sine, float& cosine) {
    sine = std::sin(angle);
    cosine = std::cos(angle);
}
inline void fence() {}
inline uint32_t count_up(uint32_t* at) {
    return (*at)++;
}
template <typename T>
T load_fresh(const T* from) {
    return *from;
}
inline void keep_largest(uint64_t* at, uint64_t value) {
    *at = *at > value ? *at : value;
}

} // namespace berth::engine::fast
