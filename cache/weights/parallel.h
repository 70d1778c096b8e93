// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>

namespace berth {

// How a model is divided among the ranks of one engine.
//
//   pipeline  stages of consecutive layers
//   data      replicas of a stage; they matter where experts are spread over them
//   tensor    ranks that share every layer of a stage
//   expert    groups among the tensor x data ranks of a stage, each with its share of the experts;
//             inside of a group an expert is divided over tensor x data / expert ranks
//
// A rank's number is (stage * data + replica) * tensor + place, as in vLLM and SGLang.
struct Parallelism {
    uint32_t tensor = 1;
    uint32_t pipeline = 1;
    uint32_t expert = 1;
    uint32_t data = 1;
    uint32_t world() const { return tensor * pipeline * data; }
    bool operator==(const Parallelism&) const = default;
};

// Where one rank stands in it.
struct RankPlace {
    uint32_t rank = 0;
    uint32_t stage = 0;
    uint32_t replica = 0;
    uint32_t tensor_rank = 0;
    uint32_t expert_group = 0;
    uint32_t expert_tensor = 1; // ranks that share one expert
    uint32_t expert_tensor_rank = 0;
};

// InvalidArgument for sizes that are 0, above 65,536 in all, or do not divide.
Status check_parallelism(const Parallelism& parallelism);
// The same, and for a rank outside of the world.
Result<RankPlace> place_of(const Parallelism& parallelism, uint32_t rank);
// "tp 8, pp 2"; "one rank".
std::string to_text(const Parallelism& parallelism);

} // namespace berth
