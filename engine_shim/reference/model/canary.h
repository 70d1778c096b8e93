// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

// One step whose result tells whether weights, memory and device are what they were: the logits
// after one fixed token. Whatever computes steps makes its own, and compares it with its own.
namespace berth::engine {

inline int32_t canary_token(uint32_t vocab) {
    return static_cast<int32_t>(vocab / 2);
}

struct Canary {
    std::string digest;           // a hash of the logits; or, where one is not finite, which
    std::vector<uint64_t> tokens; // the likeliest to come next, the likeliest first; none then
};
Canary canary_of(std::span<const float> logits);

} // namespace berth::engine
