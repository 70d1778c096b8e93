// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/config.h"

#include "cache/checkpoint/config_fields.h"
#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace berth {

namespace {

constexpr uint64_t kLayersMax = 4096;
constexpr uint64_t kHeadsMax = uint64_t{1} << 16;
constexpr uint64_t kExpertsMax = uint64_t{1} << 16;
constexpr uint64_t kSharedExpertsMax = 256;
// A model's experts are listed one by one; the largest known model has 23,424.
constexpr uint64_t kExpertsOfAllLayersMax = uint64_t{1} << 18;
constexpr uint64_t kPositionsMax = uint64_t{1} << 32;

constexpr std::array kKnown = {
    std::pair{Architecture::kLlama, std::string_view("LlamaForCausalLM")},
    std::pair{Architecture::kQwen2, std::string_view("Qwen2ForCausalLM")},
    std::pair{Architecture::kQwen3, std::string_view("Qwen3ForCausalLM")},
    std::pair{Architecture::kQwen3Moe, std::string_view("Qwen3MoeForCausalLM")},
    std::pair{Architecture::kDeepseekV2, std::string_view("DeepseekV2ForCausalLM")},
    std::pair{Architecture::kDeepseekV3, std::string_view("DeepseekV3ForCausalLM")},
};

bool is_deepseek(const ModelConfig& config) {
    return config.architecture == Architecture::kDeepseekV2 ||
           config.architecture == Architecture::kDeepseekV3;
}

Architecture architecture_from(std::string_view name) {
    for (const auto& [known, known_name] : kKnown)
        if (known_name == name)
            return known;
    return Architecture::kUnknown;
}

void read_architecture(Fields& fields, ModelConfig& config) {
    const json::value* list = fields.find("architectures");
    config.model_type = fields.text("model_type");
    if (list == nullptr)
        return;
    const json::array* names = list->if_array();
    if (names == nullptr || names->empty() || !(*names)[0].is_string()) {
        fields.bad("architectures", json::serialize(*list), "a list with one class name");
        return;
    }
    config.architecture_name = std::string_view((*names)[0].get_string());
    config.architecture = architecture_from(config.architecture_name);
}

void read_sizes(Fields& fields, ModelConfig& config) {
    bool needed = config.architecture != Architecture::kUnknown;
    config.hidden_size = fields.size("hidden_size", 0, needed);
    config.intermediate_size = fields.size("intermediate_size", 0, needed);
    config.num_hidden_layers = fields.size("num_hidden_layers", 0, needed, kLayersMax);
    config.num_attention_heads = fields.size("num_attention_heads", 0, needed, kHeadsMax);
    config.vocab_size = fields.size("vocab_size", 0, needed);
    config.max_position_embeddings =
        fields.size("max_position_embeddings", 2048, false, kPositionsMax);
    config.num_key_value_heads =
        fields.size("num_key_value_heads", config.num_attention_heads, false, kHeadsMax);
    bool has_head_dim = fields.find("head_dim") != nullptr;
    uint64_t heads = config.num_attention_heads;
    // Qwen3 fixes 128 where the file is silent; the others divide.
    uint64_t fallback = config.architecture == Architecture::kQwen3 ? 128
                        : heads > 0                                 ? config.hidden_size / heads
                                                                    : 0;
    config.head_dim = fields.size("head_dim", fallback, false, kHeadsMax);
    has_head_dim = has_head_dim || is_deepseek(config);
    if (!needed || heads == 0)
        return;
    if (!has_head_dim && config.architecture != Architecture::kQwen3 &&
        config.hidden_size % heads != 0)
        fields.bad("num_attention_heads", std::to_string(heads),
                   fmt::format("a divisor of hidden_size {}", config.hidden_size));
    if (config.num_key_value_heads == 0 || heads % config.num_key_value_heads != 0)
        fields.bad("num_key_value_heads", std::to_string(config.num_key_value_heads),
                   fmt::format("a divisor of num_attention_heads {}", heads));
}

// One object with "rope_type" (or the older "type") and numbers; "rope_theta" moved into it in
// files written by transformers 5.
void read_rope(Fields& fields, ModelConfig& config) {
    config.rope_theta = fields.number("rope_theta", config.rope_theta);
    for (std::string_view name : {"rope_scaling", "rope_parameters"}) {
        const json::value* found = fields.find(name);
        if (found == nullptr)
            continue;
        const json::object* object = found->if_object();
        if (object == nullptr) {
            fields.bad(name, json::serialize(*found), "an object or null");
            return;
        }
        for (const auto& [key, value] : *object) {
            std::string_view field(key.data(), key.size());
            if ((field == "rope_type" || field == "type") && value.is_string())
                config.rope_scaling.type = std::string_view(value.get_string());
            else if (value.is_number())
                config.rope_scaling.numbers[std::string(field)] = value.to_number<double>();
        }
    }
    auto theta = config.rope_scaling.numbers.find("rope_theta");
    if (theta != config.rope_scaling.numbers.end()) {
        config.rope_theta = theta->second;
        config.rope_scaling.numbers.erase(theta);
    }
    if (!(config.rope_theta > 0))
        fields.bad("rope_theta", fmt::format("{}", config.rope_theta), "a number above zero");
}

// Where experts are, by the rules of either family. A router chooses among the layer's experts, so
// more per token than there are is a damaged file.
void read_experts(Fields& fields, ModelConfig& config) {
    if (config.architecture == Architecture::kQwen3Moe) {
        // transformers writes either name.
        bool is_local = fields.find("num_experts") == nullptr;
        config.num_experts =
            fields.size_or_null(is_local ? "num_local_experts" : "num_experts", kExpertsMax);
        config.decoder_sparse_step = fields.size("decoder_sparse_step", 1, false, kLayersMax);
        for (int64_t layer : fields.ids("mlp_only_layers")) {
            if (layer < 0 || static_cast<uint64_t>(layer) >= config.num_hidden_layers)
                fields.bad("mlp_only_layers", std::to_string(layer),
                           fmt::format("layers from 0 to {}", config.num_hidden_layers - 1));
            else
                config.mlp_only_layers.insert(static_cast<uint64_t>(layer));
        }
    } else if (is_deepseek(config)) {
        config.num_experts = fields.size_or_null("n_routed_experts", kExpertsMax);
        if (config.num_experts > 0) {
            config.n_shared_experts = fields.size_or_null("n_shared_experts", kSharedExpertsMax);
            config.first_k_dense_replace = fields.size_or_null("first_k_dense_replace", kLayersMax);
        }
        config.moe_layer_freq = fields.size("moe_layer_freq", 1, false, kLayersMax);
        bool is_v3 = config.architecture == Architecture::kDeepseekV3;
        config.topk_method = fields.text("topk_method");
        if (config.topk_method.empty())
            config.topk_method = is_v3 ? "noaux_tc" : "greedy";
        // transformers 5 calls them num_mtp_layers.
        config.num_nextn_predict_layers = fields.count(
            "num_nextn_predict_layers", fields.count("num_mtp_layers", 0, kLayersMax), kLayersMax);
    }
    if (config.num_experts == 0)
        return;
    config.moe_intermediate_size = fields.size("moe_intermediate_size", 0, true);
    config.num_experts_per_tok = fields.count("num_experts_per_tok", 0, kExpertsMax);
    if (config.num_experts_per_tok > config.num_experts)
        fields.bad("num_experts_per_tok", std::to_string(config.num_experts_per_tok),
                   fmt::format("at most the {} experts", config.num_experts));
    if (config.num_experts * config.num_hidden_layers > kExpertsOfAllLayersMax)
        fields.bad(
            "num_hidden_layers",
            fmt::format("{} layers of {} experts", config.num_hidden_layers, config.num_experts),
            fmt::format("at most {} experts in all", kExpertsOfAllLayersMax));
}

void read_latent_attention(Fields& fields, ModelConfig& config) {
    if (!is_deepseek(config))
        return;
    config.q_lora_rank = fields.size_or_null("q_lora_rank");
    config.kv_lora_rank = fields.size("kv_lora_rank", 0, true);
    config.qk_nope_head_dim = fields.size("qk_nope_head_dim", 0, true, kHeadsMax);
    config.qk_rope_head_dim = fields.size("qk_rope_head_dim", 0, true, kHeadsMax);
    config.v_head_dim = fields.size("v_head_dim", 0, true, kHeadsMax);
    config.head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim;
}

Status read_quantisation(const Fields& fields, std::string_view shown, ModelConfig& config) {
    // An older name of compressed-tensors' own.
    for (std::string_view name : {"quantization_config", "compression_config"}) {
        const json::value* found = fields.find(name);
        if (found == nullptr)
            continue;
        BERTH_ASSIGN(Quantisation quantisation, parse_quantisation(json::serialize(*found), shown));
        config.quantisation_method = std::move(quantisation.method);
        config.quantisation_config_json = std::move(quantisation.config_json);
        config.block_quantisation = std::move(quantisation.blocks);
        return {};
    }
    return {};
}

} // namespace

std::string_view to_string(Architecture architecture) {
    for (const auto& [known, name] : kKnown)
        if (known == architecture)
            return name;
    return "unknown";
}

bool ModelConfig::has_experts(uint64_t layer) const {
    if (num_experts == 0)
        return false;
    if (architecture == Architecture::kQwen3Moe)
        return !mlp_only_layers.contains(layer) && (layer + 1) % decoder_sparse_step == 0;
    return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
}

Result<ModelConfig> parse_config(std::string_view text, std::string_view shown) {
    auto parsed = parse_strict(text, shown);
    if (!parsed) {
        Error error = parsed.error();
        error.code = ErrorCode::kCorrupt;
        error.reason = "BadConfig";
        return fail(std::move(error));
    }
    if (!parsed->is_object())
        return fail_fault({"BadConfig", shown, "", json::kind_name(*parsed), "an object",
                           "download the file again"});
    Fields fields(parsed->get_object(), shown);
    ModelConfig config;
    read_architecture(fields, config);
    read_sizes(fields, config);
    read_rope(fields, config);
    read_experts(fields, config);
    read_latent_attention(fields, config);
    config.tie_word_embeddings = fields.flag("tie_word_embeddings", false);
    config.attention_bias = fields.flag("attention_bias", false);
    config.mlp_bias = fields.flag("mlp_bias", false);
    config.rms_norm_eps = fields.number("rms_norm_eps", config.rms_norm_eps);
    config.dtype = fields.text("torch_dtype");
    if (config.dtype.empty())
        config.dtype = fields.text("dtype");
    config.hidden_act = fields.text("hidden_act");
    config.eos_token_ids = fields.ids("eos_token_id");
    config.bos_token_ids = fields.ids("bos_token_id");
    config.uses_sliding_window = fields.flag("use_sliding_window", false);
    config.sliding_window = fields.size("sliding_window", 0, false, kPositionsMax);
    BERTH_TRY(fields.finish());
    BERTH_TRY(read_quantisation(fields, shown, config));
    return config;
}

} // namespace berth
