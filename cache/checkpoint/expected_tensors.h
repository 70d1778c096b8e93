// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/config.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// Which element types a tensor may have in the checkpoint.
enum class ElementKind {
    kFloat,  // F64, F32, F16 or BF16
    kBlocks, // the elements of a matrix that is quantised by blocks
    kScales, // its factors
};

struct ExpectedTensor {
    std::string name;
    std::vector<uint64_t> shape;
    ElementKind kind = ElementKind::kFloat;
    // The matrix of a linear projection in a layer (not of the router, the embedding or the head):
    // what block-wise FP8 quantises.
    bool is_projection = false;
};

inline constexpr std::string_view kHeadName = "lm_head.weight";
inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";

// Every tensor that a decoder of this configuration needs, the head included (tied or not), experts
// one by one as the published checkpoints have them, each quantised matrix followed by its factors.
// Empty for an architecture that is not known.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Tensors that older programs stored although they are computed: ignored, never loaded.
bool is_harmless_extra(std::string_view name);

// A tensor of the layers that DeepSeek's checkpoints carry behind the model's own to guess further
// tokens ahead (num_nextn_predict_layers of them). No engine here computes them, and published
// copies come with and without: ignored and counted, never loaded, and not missed.
bool is_prediction_layer(const ModelConfig& config, std::string_view name);

} // namespace berth
