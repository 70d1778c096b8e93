// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

// One step whose result tells whether weights, memory and device are what they were: the logits
// after one fixed token. Whatever computes steps makes its own, and compares it with its own.
namespace berth::engine {

inline int32_t canary_token(uint32_t vocab) {
    return static_cast<int32_t>(vocab / 2);
}

// A hash of one row of logits; or, where one is not finite, which.
std::string canary_digest(std::span<const float> logits);
bool is_finite(const std::string& canary_digest);

} // namespace berth::engine
