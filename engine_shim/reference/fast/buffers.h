// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/fast_weights.h"

#include <cstddef>
#include <cstdint>

namespace berth::engine::fast {

// What a model and its engine ask of the fast path.
struct Dimensions {
    uint32_t layers = 0, hidden = 0, intermediate = 0, vocab = 0;
    uint32_t heads = 0, kv_heads = 0, head_dim = 0;
    float epsilon = 0;
    float rope_scale = 1;
    bool has_fp8 = false;

    uint32_t query_width() const { return heads * head_dim; }
    uint32_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct FastLimits {
    uint32_t sequences = 16;   // that take part in one step
    uint32_t chunk_rows = 512; // prompt tokens of one step
    uint32_t blocks_each = 1;  // KV blocks of the longest sequence
    uint32_t rows() const { return sequences + chunk_rows; }
};

struct FastOptions {
    // Up to so many rows products are by our kernels, beyond by the device's library.
    uint32_t own_rows = 16;
    uint32_t own_rows_fp8 = 32;
    uint32_t row_warps = 1;
    // Products that stream their weights: up to so many rows, gated pairs up to others. Of tiles
    // they take few or, where there are, more at a time.
    uint32_t stream_rows = 32;
    uint32_t stream_rows_pair = 32;
    bool many_tiles = true;
    // Bytes of x that one group may read for a bf16 matrix that is no pair: where it is more the
    // library, which shares it better, is faster. 0: as measured.
    uint32_t stream_input_max = 0;
    // Single queries by one kernel that also rotates, stores and merges.
    bool attend_all = true;
    // Groups that attention is cut into, so that all of the device works; 0: by the rows.
    uint32_t attend_groups = 0;
    // Where the gate is looked at: between pieces, by the host, or by the device in one graph.
    bool device_looks = false;
    bool graphs = true;
    bool overlap = true; // kernels of a graph may begin while the one before ends
};

// Pieces of attention for `rows` single queries: as many as the device needs, not more.
uint32_t attend_splits(const Dimensions& dims, uint32_t rows, uint32_t groups_wanted);
// Query heads of one group, and groups of one key head.
uint32_t attend_heads(const Dimensions& dims);
uint32_t attend_groups_each(const Dimensions& dims);
// Words of Buffers::arrived for so many single queries.
uint32_t arrived_count(const Dimensions& dims, uint32_t rows);

// Everything between a step's begin and end, at places that never change, so that recorded graphs
// stay right. No contents outlive a step: the memory may be taken away and given back in between.
struct Buffers {
    // As copied in, in one piece; see step_input.h.
    StepHeader* header = nullptr;
    float* inverse = nullptr;
    int32_t* tokens = nullptr;
    int32_t* positions = nullptr;
    int32_t* sequences = nullptr;
    int32_t* logit_rows = nullptr;
    int32_t* chunks = nullptr;
    int32_t* tables = nullptr;

    float* rope = nullptr;
    float* residual = nullptr;
    Bf16* normed = nullptr;
    float* qkv = nullptr;
    Bf16* q = nullptr;
    Bf16* mixed = nullptr;
    Bf16* gate_up = nullptr;
    Bf16* active = nullptr;
    float* partial = nullptr;
    float* logits = nullptr;
    uint64_t* keys = nullptr;
    uint32_t* arrived = nullptr; // pieces of attention that are done
    Bf16* dequantised = nullptr;
    std::byte* library = nullptr;

    uint64_t input_words = 0; // of the copied part
    uint64_t bytes = 0;       // of all
};
inline constexpr uint64_t kLibraryBytes = uint64_t{32} << 20;

// `base` may be null to ask for the size alone.
Buffers lay_out(const Dimensions& dims, const FastLimits& limits, const FastOptions& options,
                std::byte* base);

} // namespace berth::engine::fast
