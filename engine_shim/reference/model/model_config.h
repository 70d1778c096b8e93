// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What a checkpoint's config.json says about a dense decoder, checked: whatever this engine does
// not compute (sliding windows, other activations, quantised weights) is refused here by name,
// since ignoring it would give fluent nonsense.
namespace berth::engine {

enum class Architecture { kLlama, kQwen2, kQwen3 };

// Rotary embedding, with the fields of the scalings that these models use.
struct RopeConfig {
    std::string type = "default"; // default | linear | dynamic | llama3 | yarn
    double theta = 10000.0;
    double factor = 1.0;
    uint32_t original_max_positions = 0;
    std::optional<double> attention_factor;
    double low_frequency_factor = 1.0;
    double high_frequency_factor = 4.0;
    double beta_fast = 32.0;
    double beta_slow = 1.0;
    double mscale = 0.0;
    double mscale_all_dim = 0.0;
    bool truncate = true;
};

// Which part of a model this process has: one of `ranks` that share every layer.
struct RankShare {
    uint32_t rank = 0;
    uint32_t ranks = 1;
};

struct ModelConfig {
    Architecture architecture = Architecture::kLlama;
    uint32_t hidden = 0;
    uint32_t intermediate = 0;
    uint32_t layers = 0;
    uint32_t heads = 0;
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t vocab = 0;
    uint32_t max_positions = 0;
    double norm_epsilon = 1e-6;
    bool tied_head = false;
    bool qkv_bias = false;
    bool output_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;
    RopeConfig rope;
    // heads, kv_heads and intermediate are this rank's part; all else is the whole model's.
    RankShare share;
    std::vector<int32_t> eos_tokens;
};

// `what` names the document in errors. Unsupported with the field's name for what is not computed.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view what);
// The part of a rank, cut as weight sets are (cache/weights/slicing.h): attention between heads,
// key heads repeated where there are fewer of them than ranks, MLP and vocabulary evenly.
// InvalidArgument, NotDivisible, for what does not divide.
Result<ModelConfig> config_of_rank(ModelConfig config, const RankShare& share);
// The end tokens of a generation_config.json, which go before those of config.json; empty if it
// names none.
Result<std::vector<int32_t>> parse_generation_eos(std::string_view text, std::string_view what);

} // namespace berth::engine
