// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/quantisation.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// The decoders whose tensors and computation Berth knows.
enum class Architecture { kUnknown, kLlama, kQwen2, kQwen3, kQwen3Moe, kDeepseekV2, kDeepseekV3 };
std::string_view to_string(Architecture architecture); // "LlamaForCausalLM", ...; "unknown"

// From `rope_scaling` of older files or `rope_parameters` of newer ones.
struct RopeScaling {
    std::string type = "default";          // "default", "linear", "dynamic", "llama3", "yarn", ...
    std::map<std::string, double> numbers; // "factor", "low_freq_factor", ...
};

// What config.json says. Of an architecture that is known every field that it needs is present;
// of another the numbers may be 0.
struct ModelConfig {
    Architecture architecture = Architecture::kUnknown;
    std::string architecture_name; // as the file says it
    std::string model_type;
    uint64_t hidden_size = 0;
    uint64_t intermediate_size = 0;
    uint64_t num_hidden_layers = 0;
    uint64_t num_attention_heads = 0;
    uint64_t num_key_value_heads = 0;
    uint64_t head_dim = 0; // with latent attention: qk_nope_head_dim + qk_rope_head_dim
    uint64_t vocab_size = 0;
    uint64_t max_position_embeddings = 0;
    bool tie_word_embeddings = false;
    bool attention_bias = false;
    bool mlp_bias = false;
    double rms_norm_eps = 1e-6;
    double rope_theta = 10000.0;
    RopeScaling rope_scaling;
    std::string dtype; // "float32", "bfloat16", ...; empty when it does not say
    std::string hidden_act;
    std::vector<int64_t> eos_token_ids;
    std::vector<int64_t> bos_token_ids;
    std::string quantisation_method; // of quantization_config; empty: none
    bool uses_sliding_window = false;
    uint64_t sliding_window = 0;

    // Mixture of experts. Without experts all of it is 0 or empty.
    uint64_t num_experts = 0; // n_routed_experts of DeepSeek
    uint64_t num_experts_per_tok = 0;
    uint64_t moe_intermediate_size = 0;
    uint64_t n_shared_experts = 0;
    uint64_t decoder_sparse_step = 1;      // Qwen: every n-th layer has experts,
    std::set<uint64_t> mlp_only_layers;    // save these
    uint64_t first_k_dense_replace = 0;    // DeepSeek: the first layers have none,
    uint64_t moe_layer_freq = 1;           // then every n-th has
    std::string topk_method;               // "noaux_tc": the router has a bias for its scores
    uint64_t num_nextn_predict_layers = 0; // behind the model's own layers, see expected_tensors.h

    // Multi-head latent attention (DeepSeek); kv_lora_rank is 0 without it.
    uint64_t q_lora_rank = 0; // 0: queries are projected in one step
    uint64_t kv_lora_rank = 0;
    uint64_t qk_nope_head_dim = 0;
    uint64_t qk_rope_head_dim = 0;
    uint64_t v_head_dim = 0;

    // Present for block-wise FP8; a method that does not work is refused while the file is read.
    std::optional<BlockQuantisation> block_quantisation;
    std::string quantisation_config_json; // quantization_config, keys sorted; empty: none

    bool has_latent_attention() const { return kv_lora_rank > 0; }
    bool has_experts(uint64_t layer) const;
};

// Errors name the field: what was found, what was expected. `shown` names the file. Unsupported: a
// quantisation method that is not on the list.
Result<ModelConfig> parse_config(std::string_view text, std::string_view shown);

} // namespace berth
