// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/model/kv_cache.h"
#include "engine_shim/reference/model/model_config.h"
#include "engine_shim/reference/model/rank_group.h"
#include "engine_shim/reference/model/step_model.h"
#include "engine_shim/reference/model/weights.h"

#include <cstdint>
#include <span>

// The model's mathematics as plain functions over tensors. No state is kept between calls but the
// KV cache, and storing a token's keys and values twice stores the same: a step that was abandoned
// between two layers can simply be done again.
namespace berth::engine {

// One sequence's part of a step: `tokens` at positions `position`... . Its `blocks` reach to the
// last of them.
struct ForwardItem {
    std::span<const int32_t> tokens;
    uint32_t position = 0;
    std::span<const uint32_t> blocks;
    uint32_t rope_length = 0; // see rope_frequencies
    bool logits = false;      // of its last token
};

// Shapes of one call. With `rows` and `context_step` a sequence's numbers are made by operations
// whose shapes do not depend on its neighbours: rows are padded to `rows`, each sequence attends
// on its own, over a context padded to a multiple of `context_step`.
struct ForwardShape {
    uint32_t rows = 0;         // 0: as many as there are tokens
    uint32_t context_step = 0; // 0: sequences of one token attend together
    bool chunk = false;        // one item, whose queries take the padding rows along
};

// Logits (float32, one row for each item that wants them, in order), or an undefined tensor when
// the hook abandoned it. Items of one token go first where context_step is 0. Throws c10::Error as
// torch does: the runner catches it. With a group the config is a rank's share: every rank calls
// with the same items and shape and gets the same logits, and the hook is asked only where the
// ranks have agreed to stand still, by all of them. It is asked before layers other than the first.
at::Tensor forward(const ModelConfig& config, const DecoderWeights& weights, const KvCache& cache,
                   std::span<const ForwardItem> items, const ForwardShape& shape,
                   const LayerHook& hook, RankGroup* group = nullptr);

} // namespace berth::engine
