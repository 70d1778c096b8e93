// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/decoder.h"

#include <vector>

// What a step needs to know of places and positions, made once and used by every layer.
namespace berth::engine {

// Sequences that attend in one operation: `batch` of them, `queries` rows each.
struct AttentionGroup {
    int64_t row = 0; // the first of its rows
    int64_t batch = 0;
    int64_t queries = 0;
    at::Tensor planes; // batch * blocks first planes
    at::Tensor mask;   // [batch, 1, group * queries, context]: 0 or -inf
};

struct AttentionPlan {
    int64_t rows = 0;        // padded
    int64_t rows_valid = 0;  // the first of them carry tokens
    at::Tensor tokens;       // [rows]
    at::Tensor cosine, sine; // [rows, 1, head_dim / 2], in the model's dtype
    at::Tensor store_rows;   // [rows_valid]
    at::Tensor logit_rows;   // rows whose logits are wanted
    std::vector<AttentionGroup> groups;
};

AttentionPlan plan_attention(const ModelConfig& config, const KvCache& cache,
                             std::span<const ForwardItem> items, const ForwardShape& shape);

} // namespace berth::engine
