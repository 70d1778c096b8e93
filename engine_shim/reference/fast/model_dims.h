// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/buffers.h"
#include "engine_shim/reference/model/model_config.h"
#include "engine_shim/reference/model/rope.h"

namespace berth::engine::fast {

inline Dimensions dimensions_of(const ModelConfig& config, bool has_fp8) {
    Dimensions dims;
    dims.layers = config.layers;
    dims.hidden = config.hidden;
    dims.intermediate = config.intermediate;
    dims.vocab = config.vocab;
    dims.heads = config.heads;
    dims.kv_heads = config.kv_heads;
    dims.head_dim = config.head_dim;
    dims.epsilon = static_cast<float>(config.norm_epsilon);
    dims.rope_scale = rope_frequencies(config, 0).scale;
    dims.has_fp8 = has_fp8;
    return dims;
}

} // namespace berth::engine::fast
