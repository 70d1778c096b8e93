// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/expected_tensors.h"

#include <fmt/format.h>

namespace berth {

namespace {

// Collects the tensors of one decoder layer.
class Layer {
  public:
    Layer(const ModelConfig& config, uint64_t index, std::vector<ExpectedTensor>& tensors)
        : config_(config), prefix_(fmt::format("model.layers.{}.", index)), tensors_(tensors) {}

    void add_all() {
        const ModelConfig& config = config_;
        uint64_t query = config.num_attention_heads * config.head_dim;
        uint64_t key_value = config.num_key_value_heads * config.head_dim;
        bool is_qwen2 = config.architecture == Architecture::kQwen2;
        bool input_bias = is_qwen2 || config.attention_bias;
        bool output_bias = !is_qwen2 && config.attention_bias;
        add_vector("input_layernorm.weight", config.hidden_size);
        add_vector("post_attention_layernorm.weight", config.hidden_size);
        add_linear("self_attn.q_proj", query, config.hidden_size, input_bias);
        add_linear("self_attn.k_proj", key_value, config.hidden_size, input_bias);
        add_linear("self_attn.v_proj", key_value, config.hidden_size, input_bias);
        add_linear("self_attn.o_proj", config.hidden_size, query, output_bias);
        if (config.architecture == Architecture::kQwen3) {
            add_vector("self_attn.q_norm.weight", config.head_dim);
            add_vector("self_attn.k_norm.weight", config.head_dim);
        }
        bool mlp_bias = config.architecture == Architecture::kLlama && config.mlp_bias;
        add_linear("mlp.gate_proj", config.intermediate_size, config.hidden_size, mlp_bias);
        add_linear("mlp.up_proj", config.intermediate_size, config.hidden_size, mlp_bias);
        add_linear("mlp.down_proj", config.hidden_size, config.intermediate_size, mlp_bias);
    }

  private:
    void add_vector(std::string_view name, uint64_t size) {
        tensors_.push_back({prefix_ + std::string(name), {size}});
    }
    void add_linear(std::string_view name, uint64_t out, uint64_t in, bool bias) {
        tensors_.push_back({fmt::format("{}{}.weight", prefix_, name), {out, in}});
        if (bias)
            tensors_.push_back({fmt::format("{}{}.bias", prefix_, name), {out}});
    }

    const ModelConfig& config_;
    std::string prefix_;
    std::vector<ExpectedTensor>& tensors_;
};

} // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
    std::vector<ExpectedTensor> tensors;
    if (config.architecture == Architecture::kUnknown)
        return tensors;
    tensors.push_back({std::string(kEmbeddingName), {config.vocab_size, config.hidden_size}});
    tensors.push_back({"model.norm.weight", {config.hidden_size}});
    tensors.push_back({std::string(kHeadName), {config.vocab_size, config.hidden_size}});
    for (uint64_t index = 0; index < config.num_hidden_layers; ++index)
        Layer(config, index, tensors).add_all();
    return tensors;
}

bool is_harmless_extra(std::string_view name) {
    for (std::string_view ending : {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                    ".rotary_emb.sin_cached", ".attn.masked_bias"})
        if (name.ends_with(ending))
            return true;
    return false;
}

} // namespace berth
