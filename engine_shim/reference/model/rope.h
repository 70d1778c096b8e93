// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/model_config.h"

#include <cstdint>
#include <vector>

namespace berth::engine {

// Rotary frequencies of one sequence length, in the order of the head's first half.
struct RopeFrequencies {
    std::vector<float> inverse; // head_dim / 2
    float scale = 1.0F;         // on both cosine and sine (yarn's attention factor)
};

// `length` matters to "dynamic" alone: beyond max_position_embeddings its base grows with the
// length that the sequence has in this step.
RopeFrequencies rope_frequencies(const ModelConfig& config, uint32_t length);
bool rope_depends_on_length(const ModelConfig& config);

} // namespace berth::engine
