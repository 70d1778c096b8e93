// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/config.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

struct ExpectedTensor {
    std::string name;
    std::vector<uint64_t> shape;
};

inline constexpr std::string_view kHeadName = "lm_head.weight";
inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";

// Every tensor that a dense decoder of this configuration needs, the head included (tied or not).
// Empty for an architecture that is not known.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Tensors that older programs stored although they are computed: ignored, never loaded.
bool is_harmless_extra(std::string_view name);

} // namespace berth
