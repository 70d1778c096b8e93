// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/serve/engine_api.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

// The line between the scheduler, which knows no tensors, and what computes.
namespace berth::engine {

struct SamplingParams {
    float temperature = 1.0F; // 0: the likeliest token
    float top_p = 1.0F;
    int32_t top_k = 0; // 0: all
    uint64_t seed = 0;
    std::optional<uint32_t> logprobs; // how many of the likeliest to tell
};

struct SampledToken {
    int32_t token = -1;
    float logprob = 0; // of the unscaled distribution, where asked for
    std::vector<std::pair<int32_t, float>> top;
};

// One sequence's part of a step: `tokens` at `position`..., whose keys and values go to `blocks`.
struct StepItem {
    std::span<const int32_t> tokens;
    uint32_t position = 0;
    std::span<const uint32_t> blocks;
    uint32_t rope_length = 0;  // of the whole prompt while it is prefilled
    bool decode = false;       // one token of a sequence whose prompt is done
    bool samples = false;      // draw a token after the last of these
    uint32_t sample_index = 0; // which generated token that is
    SamplingParams params;
};

// Asked before each layer; false abandons the step.
using LayerHook = std::function<bool(uint32_t layer)>;

class StepModel {
  public:
    StepModel() = default;
    StepModel(const StepModel&) = delete;
    StepModel& operator=(const StepModel&) = delete;
    virtual ~StepModel() = default;
    // One token for each item that samples, in order; nullopt when the hook abandoned the step,
    // which may then be done again. Decoding items come first.
    virtual Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem> items,
                                                                  const LayerHook& hook) = 0;
    // True: nothing is under way on the device whenever the hook is asked.
    virtual bool waits_for_device() const { return false; }
    // What an operator should know, once; empty: nothing.
    virtual std::string take_warning() { return {}; }
};

} // namespace berth::engine
