// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// The decoders whose tensors and computation Berth knows.
enum class Architecture { kUnknown, kLlama, kQwen2, kQwen3 };
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
    uint64_t head_dim = 0;
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
};

// Errors name the field: what was found, what was expected. `shown` names the file.
Result<ModelConfig> parse_config(std::string_view text, std::string_view shown);

} // namespace berth
