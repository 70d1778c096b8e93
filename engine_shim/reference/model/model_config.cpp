// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/model_config.h"

#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace berth::engine {

namespace {

constexpr uint32_t kNumberMax = std::numeric_limits<int32_t>::max();

// Configurations write null for "not set".
json::value without_nulls(const json::value& from) {
    if (!from.is_object())
        return from;
    json::object kept;
    for (const auto& item : from.get_object()) {
        if (!item.value().is_null())
            kept[item.key()] = item.value();
    }
    return kept;
}

uint32_t checked(json::Reader& reader, std::string_view field, uint64_t number) {
    if (number <= kNumberMax)
        return static_cast<uint32_t>(number);
    reader.refuse(field, fmt::format("{} is over {}", number, kNumberMax));
    return 0;
}

uint32_t number(json::Reader& reader, std::string_view field) {
    return checked(reader, field, reader.unsigned_integer(field));
}

uint32_t number(json::Reader& reader, std::string_view field, uint32_t fallback) {
    return checked(reader, field, reader.unsigned_integer(field, fallback));
}

std::vector<int32_t> read_tokens(json::Reader& reader, std::string_view field) {
    std::vector<int32_t> tokens;
    const json::value* found = reader.any(field);
    if (found == nullptr)
        return tokens;
    const auto add = [&](const json::value& item) {
        if (item.is_int64() && item.get_int64() >= 0 && item.get_int64() <= kNumberMax)
            tokens.push_back(static_cast<int32_t>(item.get_int64()));
        else
            reader.refuse(field, "expected a token id or a list of token ids");
    };
    if (!found->is_array()) {
        add(*found);
        return tokens;
    }
    for (const json::value& item : found->get_array())
        add(item);
    return tokens;
}

tl::unexpected<Error> unsupported(std::string_view what, std::string_view found,
                                  std::string_view supported) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: {} is not computed by this engine, which has {}", what, found, supported),
        "UnsupportedModel");
}

// The parameters as transformers 5 writes them (`rope_parameters`), or as 4 did: `rope_scaling`
// beside `rope_theta`.
Result<RopeConfig> read_rope(const json::value& config, uint32_t max_positions,
                             std::string_view what) {
    const json::object& fields = config.get_object();
    const json::value* section = fields.if_contains("rope_parameters");
    if (section == nullptr)
        section = fields.if_contains("rope_scaling");
    json::Reader outer(config, what);
    outer.allow_unknown();
    RopeConfig rope;
    rope.theta = outer.number("rope_theta", rope.theta);
    const double partial = outer.number("partial_rotary_factor", 1.0);
    rope.original_max_positions = number(outer, "original_max_position_embeddings", max_positions);
    BERTH_TRY(outer.finish());
    double partial_inner = partial;
    if (section != nullptr) {
        const json::value inner = without_nulls(*section);
        json::Reader reader(inner, fmt::format("{}: rope_parameters", what));
        reader.allow_unknown();
        rope.type = reader.string("rope_type", reader.string("type", "default"));
        rope.theta = reader.number("rope_theta", rope.theta);
        rope.factor = reader.number("factor", rope.factor);
        if (fields.if_contains("original_max_position_embeddings") == nullptr)
            rope.original_max_positions =
                number(reader, "original_max_position_embeddings", max_positions);
        if (reader.any("attention_factor") != nullptr)
            rope.attention_factor = reader.number("attention_factor");
        rope.low_frequency_factor = reader.number("low_freq_factor", rope.low_frequency_factor);
        rope.high_frequency_factor = reader.number("high_freq_factor", rope.high_frequency_factor);
        rope.beta_fast = reader.number("beta_fast", rope.beta_fast);
        rope.beta_slow = reader.number("beta_slow", rope.beta_slow);
        rope.mscale = reader.number("mscale", rope.mscale);
        rope.mscale_all_dim = reader.number("mscale_all_dim", rope.mscale_all_dim);
        rope.truncate = reader.boolean("truncate", rope.truncate);
        partial_inner = reader.number("partial_rotary_factor", partial);
        if (reader.any("factor") == nullptr && rope.type != "default" && rope.type != "yarn")
            reader.refuse("factor", fmt::format("rope type '{}' needs one", rope.type));
        BERTH_TRY(reader.finish());
        if (reader.any("factor") == nullptr && rope.type == "yarn")
            rope.factor = static_cast<double>(max_positions) / rope.original_max_positions;
    }
    if (partial_inner != 1.0)
        return unsupported(what, fmt::format("partial_rotary_factor {}", partial_inner),
                           "rotary embedding of whole heads");
    for (const std::string_view known : {"default", "linear", "dynamic", "llama3", "yarn"}) {
        if (rope.type == known)
            return rope;
    }
    return unsupported(what, fmt::format("rope type '{}'", rope.type),
                       "default, linear, dynamic, llama3 and yarn");
}

// As the DeepSeek-V3 checkpoints say it.
bool is_block_fp8(const json::value& quantisation) {
    const json::object* object = quantisation.if_object();
    if (object == nullptr || !object->contains("quant_method"))
        return false;
    const json::value blocks = {128, 128};
    const json::value* size = object->if_contains("weight_block_size");
    return object->at("quant_method") == "fp8" && size != nullptr && *size == blocks;
}

Status read_architecture(json::Reader& reader, std::string_view what, ModelConfig& config) {
    const std::string type = reader.string("model_type");
    const bool attention_bias = reader.boolean("attention_bias", false);
    if (type == "llama") {
        config.architecture = Architecture::kLlama;
        config.qkv_bias = config.output_bias = attention_bias;
        config.mlp_bias = reader.boolean("mlp_bias", false);
    } else if (type == "qwen2") {
        config.architecture = Architecture::kQwen2;
        config.qkv_bias = true;
    } else if (type == "qwen3") {
        config.architecture = Architecture::kQwen3;
        config.qkv_bias = config.output_bias = attention_bias;
        config.qk_norm = true;
    } else {
        BERTH_TRY(reader.finish());
        return unsupported(what, fmt::format("model_type '{}'", type), "llama, qwen2 and qwen3");
    }
    const std::string activation = reader.string("hidden_act", "silu");
    if (activation != "silu")
        return unsupported(what, fmt::format("hidden_act '{}'", activation), "silu");
    if (const json::value* quantisation = reader.any("quantization_config");
        quantisation != nullptr && !is_block_fp8(*quantisation))
        return unsupported(what, "quantization_config",
                           "float32, bfloat16 and block-wise FP8 weights");
    if (reader.boolean("use_sliding_window", false))
        return unsupported(what, "use_sliding_window", "attention over the whole context");
    return {};
}

Status check_shapes(const ModelConfig& config, std::string_view what) {
    const auto refuse = [&](std::string_view why) {
        return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, why), "BadConfig");
    };
    if (config.hidden == 0 || config.intermediate == 0 || config.layers == 0 || config.vocab == 0 ||
        config.max_positions == 0 || config.head_dim == 0)
        return refuse("a size is 0: hidden_size, intermediate_size, num_hidden_layers, vocab_size, "
                      "head_dim and max_position_embeddings must be positive");
    if (config.kv_heads == 0 || config.heads % config.kv_heads != 0)
        return refuse(fmt::format("num_attention_heads {} is no multiple of num_key_value_heads {}",
                                  config.heads, config.kv_heads));
    if (config.head_dim % 2 != 0)
        return refuse(
            fmt::format("head_dim {} is odd; rotary embedding needs pairs", config.head_dim));
    return {};
}

} // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view what) {
    BERTH_ASSIGN(const json::value document, json::parse(text, what));
    const json::value cleaned = without_nulls(document);
    json::Reader reader(cleaned, what);
    reader.allow_unknown();
    ModelConfig config;
    BERTH_TRY(read_architecture(reader, what, config));
    config.hidden = number(reader, "hidden_size");
    config.intermediate = number(reader, "intermediate_size");
    config.layers = number(reader, "num_hidden_layers");
    config.heads = number(reader, "num_attention_heads");
    config.kv_heads = number(reader, "num_key_value_heads", config.heads);
    const uint32_t default_head = config.architecture == Architecture::kQwen3 ? 128
                                  : config.heads > 0 ? config.hidden / config.heads
                                                     : 0;
    config.head_dim = number(reader, "head_dim", default_head);
    config.vocab = number(reader, "vocab_size");
    config.max_positions = number(reader, "max_position_embeddings", 2048);
    config.norm_epsilon = reader.number("rms_norm_eps", 1e-6);
    config.tied_head = reader.boolean("tie_word_embeddings", false);
    config.eos_tokens = read_tokens(reader, "eos_token_id");
    BERTH_TRY(reader.finish());
    BERTH_TRY(check_shapes(config, what));
    BERTH_ASSIGN(config.rope, read_rope(cleaned, config.max_positions, what));
    return config;
}

Result<ModelConfig> config_of_rank(ModelConfig config, const RankShare& share) {
    if (share.ranks == 0 || share.rank >= share.ranks)
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("rank {} of {}: ranks are numbered from 0", share.rank, share.ranks),
            "BadRank");
    const auto check = [&](std::string_view what, uint32_t count, bool shared) -> Status {
        if (count % share.ranks == 0 || (shared && share.ranks % count == 0))
            return {};
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the model has {} {}, which {} ranks do not divide: choose another "
                                "tensor parallelism",
                                count, what, share.ranks),
                    "NotDivisible");
    };
    BERTH_TRY(check("attention heads", config.heads, false));
    BERTH_TRY(check("key/value heads", config.kv_heads, true));
    BERTH_TRY(check("rows of the MLP", config.intermediate, false));
    BERTH_TRY(check("words", config.vocab, false));
    config.heads /= share.ranks;
    config.kv_heads = std::max<uint32_t>(config.kv_heads / share.ranks, 1);
    config.intermediate /= share.ranks;
    config.share = share;
    return config;
}

Result<std::vector<int32_t>> parse_generation_eos(std::string_view text, std::string_view what) {
    BERTH_ASSIGN(const json::value document, json::parse(text, what));
    const json::value cleaned = without_nulls(document);
    json::Reader reader(cleaned, what);
    reader.allow_unknown();
    std::vector<int32_t> tokens = read_tokens(reader, "eos_token_id");
    BERTH_TRY(reader.finish());
    return tokens;
}

} // namespace berth::engine
