// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// What the kernels of decode_kernels.cu take, the same for host and device. Pointers are the
// device's. bf16 is kept as its bits.
namespace berth::engine::fast {

using Bf16 = uint16_t;

// One place for all numbers that change from step to step, so that a graph never does: the first
// words of the step's input, in device memory.
struct StepHeader {
    int32_t table_pitch; // entries of one sequence in the block tables
    // Of a graph that looks at the gate by itself: the word that stands for an open gate, and the
    // next section to be done, which the device counts on.
    uint32_t open_word;
    uint32_t next_section;
};

struct LookParams {
    uint64_t handle;      // the condition of the section behind it
    const uint32_t* word; // the gate's, in the host's memory
    StepHeader* header;
    uint32_t section;
};

// A block's tokens are a multiple of these.
inline constexpr uint32_t kPageTokens = 16;

// The paged keys and values: block, layer, key or value, token, head, place.
struct Pages {
    Bf16* memory;
    uint64_t block_stride; // elements
    uint64_t plane_stride; // elements: one layer's keys, or values, of one block
    uint32_t block_tokens;
    uint32_t kv_heads;
    const StepHeader* header;
    const int32_t* tables; // [sequence][table_pitch]
};

struct EmbedParams {
    const int32_t* tokens;    // [rows]
    const int32_t* positions; // [rows]; below 0: a row that is there for the shape's sake
    const Bf16* embedding;
    const float* inverse; // [head_dim / 2] rotary frequencies
    float* residual;      // [rows][hidden]
    float* rope;          // [rows][head_dim / 2][cosine, sine]
    uint64_t* keys;       // [key_count], set to 0
    uint32_t* arrived;    // [arrived_count], set to 0
    float rope_scale;
    uint32_t hidden;
    uint32_t half;
    uint32_t key_count;
    uint32_t arrived_count;
};

struct NormParams {
    const float* from;      // [rows][hidden]
    const int32_t* rows_at; // which rows are taken; null: all, in order
    const Bf16* weight;
    Bf16* to;
    float epsilon;
    uint32_t hidden;
};

// The products that stream weights through shared memory (stream_kernel.cuh).
inline constexpr uint32_t kStreamThreads = 256;
inline constexpr uint32_t kStreamQueueBytes = 192U << 10;
constexpr uint32_t stream_shared_bytes(uint32_t columns, bool pair) {
    return kStreamQueueBytes +
           kStreamThreads / 32 * (pair ? 2 : 1) * 16 * ((columns < 16 ? 8 : 16) + 1) * 4;
}

enum MatrixMode : uint32_t { kStore = 0, kAdd = 1, kSiluTimes = 2 };

// to[m][n] = x[m][k] . weight[n][k]. Up to three matrices stand side by side; with kSiluTimes
// exactly two of one shape are multiplied into one: silu(first) * second, as bf16.
struct MatrixParams {
    const void* weight[3];
    const float* scales[3]; // FP8 alone: one for each 128 x 128
    uint32_t n[3];
    uint32_t parts;
    const Bf16* x; // [m][k]
    void* to;      // float, or bf16 with kSiluTimes
    uint32_t m;
    uint32_t k;
    uint32_t to_pitch;
    MatrixMode mode;
};

// What queries, keys and values are made of.
struct HeadParams {
    const float* qkv; // [rows][(heads + 2 * kv_heads) * head_dim]
    const float* rope;
    const Bf16* bias[3]; // of queries, keys, values; null: none
    const Bf16* q_norm;  // [head_dim]; null: none
    const Bf16* k_norm;
    float epsilon;
    uint32_t heads;
    uint32_t kv_heads;
};

struct RopeParams {
    HeadParams from;
    const int32_t* positions; // [rows]
    const int32_t* sequences; // [rows]: whose block table
    Bf16* q;                  // [rows][heads * head_dim]
    Pages pages;
    uint32_t layer;
    uint32_t first_row; // those before are done elsewhere
};

inline constexpr uint32_t kSplitsMax = 64;
inline constexpr uint32_t kPartialExtra =
    4; // behind a piece's sums: largest score, weight, nothing

// Attention of single queries over paged context, cut into `splits` pieces.
struct AttendParams {
    const Bf16* q; // [rows][heads * head_dim]
    const int32_t* positions;
    Pages pages;
    float* partial; // [rows][heads][splits][head_dim + kPartialExtra]
    Bf16* to;       // [rows][heads * head_dim]
    float scale;    // of scores, by powers of two
    uint32_t layer;
    uint32_t heads;
    uint32_t splits;
    // Of the kernel that also rotates and stores, and merges the pieces: instead of q and of
    // RopeParams' own.
    HeadParams heads_from;
    uint32_t* arrived; // [rows][groups of heads]: pieces that are done; 0 before and after
};

struct SiluParams {
    const Bf16* from; // [rows][gate of `width`, up of `width`]
    Bf16* to;         // [rows][width]
    uint32_t width;
};

// Whole contexts become rows of a plain tensor, one behind the other.
struct GatherParams {
    Pages pages;
    const int32_t* starts;    // [items + 1]: the first row of each
    const int32_t* sequences; // [items]
    Bf16* keys;               // [rows][kv_heads * head_dim]
    Bf16* values;
    uint32_t items;
    uint32_t layer;
    uint32_t row; // kv_heads * head_dim
};

struct LargestParams {
    const float* logits; // [rows][width]
    uint64_t* keys;      // [rows]: the value's bits in order, then the token's, inverted
    uint32_t width;
    uint32_t slices;
};

struct DequantiseParams {
    const uint8_t* from; // [n][k]
    const float* scales;
    Bf16* to;
    uint32_t n;
    uint32_t k;
};

struct ReadParams {
    const void* from;
    uint64_t bytes; // a multiple of 16
    uint32_t* to;   // one word for each group; keeps the reads alive
};

} // namespace berth::engine::fast
