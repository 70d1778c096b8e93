// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/cuda_queue.h"
#include "engine_shim/reference/fast/fast_model.h"
#include "engine_shim/reference/model/kv_cache.h"
#include "engine_shim/reference/model/model_config.h"
#include "engine_shim/reference/model/weights.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace berth::engine {

// A model of a real shape with random weights in plain memory of the GPU, for benches: nothing of
// berthd, no checkpoint. One thread.
class BenchModel {
  public:
    struct Setting {
        ModelConfig config;
        bool fp8 = false;
        uint32_t sequences = 32;
        uint32_t chunk_rows = 2048;
        uint32_t context = 4096; // tokens of each sequence
        uint32_t block_tokens = 16;
        fast::FastOptions options{};
        fast::LookLimits looks{};
    };
    static Result<std::unique_ptr<BenchModel>> make(const Setting& setting);

    // Another model over the same weights and pages.
    Result<std::unique_ptr<fast::FastModel>>
    remake(const fast::FastOptions& options, const fast::LookLimits& looks,
           const std::atomic<uint32_t>* gate_word = nullptr);
    fast::Queue& queue() { return *queue_; }
    const fast::FastWeights& weights() const { return fast_weights_; }
    const fast::Dimensions& dims() const { return dims_; }
    const fast::Buffers& buffers() const { return buffers_; }
    const DecoderWeights& decoder() const { return decoder_; }
    const KvCache& cache() const { return cache_; }
    const Setting& setting() const { return setting_; }

    uint64_t weight_bytes() const; // that a decode step reads: without the embedding
    uint64_t kv_bytes(uint32_t tokens) const;
    // Blocks of a sequence, in an order that is no order.
    std::vector<uint32_t> blocks_of(uint32_t sequence) const;

  private:
    explicit BenchModel(const Setting& setting) : setting_(setting) {}
    Status allocate();

    const Setting setting_;
    DecoderWeights decoder_;
    fast::FastWeights fast_weights_;
    fast::Dimensions dims_;
    fast::FastLimits limits_;
    fast::Buffers buffers_;
    at::Tensor pages_, workspace_;
    KvCache cache_;
    std::unique_ptr<fast::Queue> queue_;
};

// "qwen3-8b", "qwen3-0.6b", "llama-3-8b", "qwen2.5-0.5b"; InvalidArgument with the list otherwise.
Result<ModelConfig> bench_shape(const std::string& name);

} // namespace berth::engine
