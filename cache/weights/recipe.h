// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/weights/parallel.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace berth {

inline constexpr std::string_view kNoQuantisation = "none"; // as stored
// FP8 (E4M3) by blocks of 128 x 128 with a float32 factor each, "X.weight_scale_inv", as the
// DeepSeek-V3 checkpoints have it.
inline constexpr std::string_view kBlockFp8 = "fp8-block";

// What is made of a checkpoint for one rank.
struct WeightRecipe {
    Parallelism parallelism;
    uint32_t rank = 0;
    std::string quantisation = std::string(kNoQuantisation);
    std::string dtype = "auto"; // "auto": as stored; "float32"; "bfloat16"
};

} // namespace berth
