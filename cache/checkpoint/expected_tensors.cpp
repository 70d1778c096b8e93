// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/expected_tensors.h"

#include <fmt/format.h>

#include <charconv>

namespace berth {

namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";

// Collects the tensors of one decoder layer.
class Layer {
  public:
    Layer(const ModelConfig& config, uint64_t index, std::vector<ExpectedTensor>& tensors)
        : config_(config), index_(index), prefix_(fmt::format("{}{}.", kLayerPrefix, index)),
          tensors_(tensors) {}

    void add_all() {
        add_vector("input_layernorm.weight", config_.hidden_size);
        add_vector("post_attention_layernorm.weight", config_.hidden_size);
        if (config_.has_latent_attention())
            add_latent_attention();
        else
            add_attention();
        if (config_.has_experts(index_))
            add_experts();
        else
            add_mlp("mlp", config_.intermediate_size);
    }

  private:
    bool is(Architecture architecture) const { return config_.architecture == architecture; }

    void add_attention() {
        uint64_t query = config_.num_attention_heads * config_.head_dim;
        uint64_t key_value = config_.num_key_value_heads * config_.head_dim;
        bool input_bias = is(Architecture::kQwen2) || config_.attention_bias;
        bool output_bias = !is(Architecture::kQwen2) && config_.attention_bias;
        add_projection("self_attn.q_proj", query, config_.hidden_size, input_bias);
        add_projection("self_attn.k_proj", key_value, config_.hidden_size, input_bias);
        add_projection("self_attn.v_proj", key_value, config_.hidden_size, input_bias);
        add_projection("self_attn.o_proj", config_.hidden_size, query, output_bias);
        if (is(Architecture::kQwen3) || is(Architecture::kQwen3Moe)) {
            add_vector("self_attn.q_norm.weight", config_.head_dim);
            add_vector("self_attn.k_norm.weight", config_.head_dim);
        }
    }

    void add_latent_attention() {
        uint64_t heads = config_.num_attention_heads;
        uint64_t query = heads * config_.head_dim;
        uint64_t rank = config_.kv_lora_rank;
        bool bias = config_.attention_bias;
        if (config_.q_lora_rank > 0) {
            add_projection("self_attn.q_a_proj", config_.q_lora_rank, config_.hidden_size, bias);
            add_vector("self_attn.q_a_layernorm.weight", config_.q_lora_rank);
            add_projection("self_attn.q_b_proj", query, config_.q_lora_rank, false);
        } else {
            add_projection("self_attn.q_proj", query, config_.hidden_size, false);
        }
        add_projection("self_attn.kv_a_proj_with_mqa", rank + config_.qk_rope_head_dim,
                       config_.hidden_size, bias);
        add_vector("self_attn.kv_a_layernorm.weight", rank);
        add_projection("self_attn.kv_b_proj",
                       heads * (config_.qk_nope_head_dim + config_.v_head_dim), rank, false);
        add_projection("self_attn.o_proj", config_.hidden_size, heads * config_.v_head_dim, bias);
    }

    void add_experts() {
        tensors_.push_back(
            {prefix_ + "mlp.gate.weight", {config_.num_experts, config_.hidden_size}});
        if (config_.topk_method == "noaux_tc")
            add_vector("mlp.gate.e_score_correction_bias", config_.num_experts);
        for (uint64_t expert = 0; expert < config_.num_experts; ++expert)
            add_mlp(fmt::format("mlp.experts.{}", expert), config_.moe_intermediate_size, false);
        if (config_.n_shared_experts > 0)
            add_mlp("mlp.shared_experts", config_.moe_intermediate_size * config_.n_shared_experts);
    }

    void add_mlp(const std::string& module, uint64_t inner, bool may_have_bias = true) {
        bool bias = may_have_bias && config_.mlp_bias &&
                    (is(Architecture::kLlama) || is(Architecture::kDeepseekV2));
        add_projection(module + ".gate_proj", inner, config_.hidden_size, bias);
        add_projection(module + ".up_proj", inner, config_.hidden_size, bias);
        add_projection(module + ".down_proj", config_.hidden_size, inner, bias);
    }

    void add_vector(std::string_view name, uint64_t size) {
        tensors_.push_back({prefix_ + std::string(name), {size}});
    }

    void add_projection(std::string_view name, uint64_t out, uint64_t in, bool bias) {
        std::string module = prefix_ + std::string(name);
        const BlockQuantisation* blocks =
            config_.block_quantisation && config_.block_quantisation->converts(module)
                ? &*config_.block_quantisation
                : nullptr;
        std::string weight = module + ".weight";
        tensors_.push_back({weight,
                            {out, in},
                            blocks != nullptr ? ElementKind::kBlocks : ElementKind::kFloat,
                            true});
        if (blocks != nullptr)
            tensors_.push_back({weight + std::string(kScaleSuffix), blocks->scale_shape(out, in),
                                ElementKind::kScales, false});
        if (bias)
            tensors_.push_back({module + ".bias", {out}});
    }

    const ModelConfig& config_;
    uint64_t index_;
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

bool is_prediction_layer(const ModelConfig& config, std::string_view name) {
    if (config.num_nextn_predict_layers == 0 || !name.starts_with(kLayerPrefix))
        return false;
    name.remove_prefix(kLayerPrefix.size());
    uint64_t layer = 0;
    auto [rest, error] = std::from_chars(name.begin(), name.end(), layer);
    return error == std::errc() && rest != name.end() && *rest == '.' &&
           layer >= config.num_hidden_layers &&
           layer - config.num_hidden_layers < config.num_nextn_predict_layers;
}

} // namespace berth
