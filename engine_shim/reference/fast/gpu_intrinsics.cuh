// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// What the kernels ask of the device beyond plain arithmetic. The tests have the same functions for
// a CPU, on which the kernels' logic is checked where there is no GPU.
namespace berth::engine::fast {

constexpr uint32_t kAllLanes = 0xffffffffU;

// Weights are read once: past the first cache.
__device__ inline uint4 load_once(const void* from) {
    uint4 words;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from));
    return words;
}
__device__ inline uint4 load_again(const void* from) {
    return *static_cast<const uint4*>(from);
}

// 16 bytes to shared memory, on their own; zeros where they are not `there`. Those asked for since
// the last end_of_copies() belong together. After wait_for_copies<n>() all but the last n such are
// there, for the thread that has asked for them.
__device__ inline void copy_by_itself(uint4* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from),
                   "r"(there ? 16 : 0)
                 : "memory");
}
__device__ inline void copy_word_by_itself(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}
__device__ inline void end_of_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}

template <typename T>
__device__ inline T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(kAllLanes, value, mask);
}
__device__ inline void barrier() {
    __syncthreads();
}
__device__ inline void barrier_of_warp() {
    __syncwarp();
}

// Where kernels of one stream may overlap: nothing that the kernel before wrote is read, and
// nothing written, before wait_for_previous(); after release_next() the next kernel may begin.
__device__ inline void wait_for_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ inline void release_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// sums += a (16 x 16) . b (16 x 8), bf16 in, float32 out.
__device__ inline void multiply_add(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two floats rounded to bf16: `low` in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
// Bytes 0 and 1 (`which` 0) or 2 and 3 (1) of a word, spread into the low bytes of its halves.
__device__ inline uint32_t spread_bytes(uint32_t word, int which) {
    return __byte_perm(word, 0, which == 0 ? 0x4140 : 0x4342);
}

__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float inverse_root(float x) {
    return rsqrtf(x);
}
__device__ inline float as_float(uint32_t bits) {
    return __uint_as_float(bits);
}
__device__ inline uint32_t as_bits(float x) {
    return __float_as_uint(x);
}
__device__ inline void sine_cosine(float angle, float& sine, float& cosine) {
    sincosf(angle, &sine, &cosine);
}
// Between groups: what was written before the one is seen behind the other.
__device__ inline void fence() {
    __threadfence();
}
__device__ inline uint32_t count_up(uint32_t* at) {
    return atomicAdd(at, 1U);
}
// Past the first cache: what other groups of the same kernel have written.
template <typename T>
__device__ inline T load_fresh(const T* from) {
    return __ldcg(from);
}
__device__ inline void keep_largest(uint64_t* at, uint64_t value) {
    atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

} // namespace berth::engine::fast
