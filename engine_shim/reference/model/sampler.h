// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/step_model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace berth::engine {

// One row of logits and how to draw from it. `index` counts the sequence's generated tokens: the
// draw is a function of (seed, index) alone, so a step that is done again draws the same.
struct SampleRow {
    SamplingParams params;
    uint32_t index = 0;
};

// `logits` is float32 [rows.size(), vocab] on any device.
std::vector<SampledToken> sample(const at::Tensor& logits, std::span<const SampleRow> rows);

} // namespace berth::engine
