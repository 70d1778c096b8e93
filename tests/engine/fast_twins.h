// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/fast_model.h"
#include "engine_shim/reference/model/kv_cache.h"
#include "engine_shim/reference/model/model_config.h"
#include "engine_shim/reference/model/weights.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

// The fast path and the plain mathematics of decoder.h side by side, on small random decoders.
namespace berth::engine::fast {

inline constexpr uint32_t kTwinBlock = 16;

// Llama's mathematics; 3 layers, 4 heads of 64 places for 2 key heads.
ModelConfig small_config();

struct TwinModels {
    DecoderWeights narrow; // as the fast path gets them
    DecoderWeights wide;   // the same numbers in float32, on the CPU
};
TwinModels random_models(const ModelConfig& config, bool fp8);

// Makes every step in three ways: the fast one by a queue's device, and the plain mathematics on
// the CPU twice, in float32 and in bf16. How far the plain one in bf16 lies from float32 is what
// rounding costs on these weights; the fast one rounds less often, so it may not lie much further
// off.
class Twins {
  public:
    struct Setting {
        ModelConfig config;
        bool fp8 = false;
        FastOptions options = {.attend_groups = 24};
        LookLimits looks{};
        const std::atomic<uint32_t>* gate_word = nullptr;
        FastLimits limits{6, 64, 24};
        uint32_t blocks = 24;
        uint32_t contexts_max = 40;
        at::Device device = at::kCPU; // where the fast one's tensors lie
    };
    using QueueMaker = std::function<Result<std::unique_ptr<Queue>>(const Buffers& buffers)>;
    Twins(const Setting& setting, const QueueMaker& make_queue);

    // The likeliest tokens of the fast one, whose logits were compared; none when the hook said no.
    std::vector<int32_t> step(const std::vector<StepItem>& items, const LayerHook& hook = {});
    // How far logits lie from float32's, in parts of their spread, over all steps.
    struct Error {
        double squares = 0; // of the logits' differences
        uint64_t logits = 0;
        double worst_row = 0; // root of a row's mean square
        double worst = 0;     // of one logit
        void add(const at::Tensor& found, const at::Tensor& expected);
        double mean() const; // root of the mean square
    };
    const Error& error() const { return error_; }
    const Error& plain_error() const { return plain_error_; }
    // Of all steps so far. A fault of one row, head or block shows in its row, whose error then is
    // a good part of the spread; rounding differs between rows by luck.
    void expect_no_more_than_rounding() const;
    // One of the last layer's weights, of the fast one alone.
    void set_a_weight(float value);
    Queue& queue() { return *queue_; }
    FastModel& model() { return *model_; }

  private:
    const ModelConfig config_;
    at::Tensor forward_plain(const DecoderWeights& weights, const KvCache& cache,
                             const std::vector<StepItem>& items) const;

    TwinModels models_;
    DecoderWeights on_device_;
    std::vector<std::byte> wide_memory_, plain_memory_;
    at::Tensor narrow_memory_, workspace_;
    KvCache narrow_, wide_, plain_;
    std::unique_ptr<Queue> queue_;
    std::unique_ptr<FastModel> model_;
    Error error_, plain_error_;
};

// A sequence that grows by what it is given.
struct Growing {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> blocks;
    uint32_t computed = 0;

    // Its next `count` tokens, which sample when they are its last.
    StepItem next(uint32_t count);
};
Growing random_sequence(uint32_t length, uint32_t vocab, std::vector<uint32_t> blocks);

// Sequences of several lengths: prompts together, then as many single steps. Compares as above and
// tells what it found.
void run_sequences(const Twins::Setting& setting, const Twins::QueueMaker& make_queue,
                   uint32_t sequences, uint32_t steps, const char* what);
// 3 layers of a width at which all warps have work.
ModelConfig wide_config(uint32_t heads, uint32_t kv_heads, uint32_t head_dim);
inline constexpr uint32_t kWideBlocks = 12; // of each sequence

} // namespace berth::engine::fast
