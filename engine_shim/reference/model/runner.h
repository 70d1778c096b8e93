// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/block_moves.h"
#include "engine_shim/reference/model/decoder.h"
#include "engine_shim/reference/model/rank_work.h"
#include "engine_shim/reference/model/step_model.h"

#include <string>

namespace berth::engine {

struct RunnerOptions {
    bool batch_invariant = false;
    uint32_t decode_rows = 16;   // batch-invariant: rows of every decode
    uint32_t chunk_rows = 512;   // batch-invariant: rows of every prefill chunk
    uint32_t context_step = 128; // batch-invariant: context lengths are padded to multiples of it
};

// Where the model is shared by several ranks: how they compute together, and, on rank 0, how the
// others are told. Both outlive the runner.
struct RunnerRanks {
    RankGroup* group = nullptr;
    RankWork* others = nullptr;
};

// Computes steps: the decoder over its weights and cache, then the sampler. Engine thread only.
class ModelRunner final : public StepModel {
  public:
    ModelRunner(ModelConfig config, DecoderWeights weights, KvCache cache, RunnerOptions options,
                RunnerRanks ranks = {});

    Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem> items,
                                                          const LayerHook& hook) override;
    // Logits of the items that sample, before any drawing; nullopt when abandoned.
    Result<std::optional<at::Tensor>> logits(std::span<const StepItem> items,
                                             const LayerHook& hook);
    // canary() and copy_blocks() tell the other ranks; step() is told by who calls it.
    // A hash of the logits after one fixed token, computed through `block`: the same for as long as
    // weights, memory and device are what they were. The hook may wait, and is asked once before
    // other ranks are told; what it says is not looked at.
    Result<std::string> canary(uint32_t block, const LayerHook& hook = {});
    // Copies whole blocks within the cache; may still be under way when it returns.
    Status copy_blocks(std::span<const BlockMove> moves);
    const ModelConfig& config() const { return config_; }
    const KvCache& cache() const { return cache_; }
    RankWork* others() const { return ranks_.others; }

  private:
    // Undefined when abandoned.
    at::Tensor compute(std::span<const StepItem> items, const LayerHook& hook) const;
    at::Tensor compute_invariant(std::span<const ForwardItem> items, size_t decoding,
                                 const LayerHook& hook) const;

    const ModelConfig config_;
    const DecoderWeights weights_;
    const KvCache cache_;
    const RunnerOptions options_;
    const RunnerRanks ranks_;
};

} // namespace berth::engine
