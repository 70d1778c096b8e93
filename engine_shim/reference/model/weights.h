// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/model/model_config.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace berth::engine {

// A tensor by its name in the checkpoint: a view of the mapped weight set, never a copy.
using WeightSource = std::function<Result<at::Tensor>(const std::string& name)>;

// A linear layer's matrix; with `scales` it is FP8 by blocks of 128 x 128: value = fp8 * scale.
struct LinearWeight {
    at::Tensor weight;
    at::Tensor scales; // float32, one for each block; undefined: the matrix is as it is
};

// One decoder layer; a bias or norm that the model does not have is an undefined tensor.
struct LayerWeights {
    at::Tensor input_norm, post_norm;
    LinearWeight q, k, v, o;
    at::Tensor q_bias, k_bias, v_bias, o_bias;
    at::Tensor q_norm, k_norm;
    LinearWeight gate, up, down;
    at::Tensor gate_bias, up_bias, down_bias;
};

struct DecoderWeights {
    at::Tensor embedding;
    at::Tensor final_norm;
    at::Tensor head; // the embedding itself when tied
    std::vector<LayerWeights> layers;
};

// Fetches what the model needs and checks shape, and that all have one dtype (float32 or bfloat16;
// matrices may be FP8 with their scales) and one device. Mismatch with the tensor's name.
Result<DecoderWeights> resolve_weights(const ModelConfig& config, const WeightSource& source);

} // namespace berth::engine
