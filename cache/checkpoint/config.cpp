// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/config.h"

#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

namespace berth {

namespace {

// Sizes beyond these are a damaged file, and would overflow products further on.
constexpr uint64_t kSizeMax = uint64_t{1} << 32;
constexpr uint64_t kLayersMax = 4096;

// Reads fields leniently (unknown ones belong to other programs) and keeps the first fault.
// A field that is null counts as absent, as transformers writes it.
class Fields {
  public:
    Fields(const json::object& object, std::string_view shown) : object_(object), shown_(shown) {}

    const json::value* find(std::string_view name) const {
        const json::value* found = object_.if_contains({name.data(), name.size()});
        return found != nullptr && found->is_null() ? nullptr : found;
    }
    uint64_t size(std::string_view name, uint64_t fallback, bool required,
                  uint64_t max = kSizeMax) {
        const json::value* found = find(name);
        if (found == nullptr) {
            if (required)
                bad(name, "nothing", "a whole number above zero");
            return fallback;
        }
        boost::json::error_code error;
        auto number = found->to_number<uint64_t>(error);
        if (error || found->is_double() || number == 0 || number > max) {
            bad(name, json::serialize(*found), fmt::format("a whole number from 1 to {}", max));
            return fallback;
        }
        return number;
    }
    double number(std::string_view name, double fallback) {
        const json::value* found = find(name);
        if (found == nullptr)
            return fallback;
        boost::json::error_code error;
        auto number = found->to_number<double>(error);
        if (error || !std::isfinite(number)) {
            bad(name, json::serialize(*found), "a number");
            return fallback;
        }
        return number;
    }
    bool flag(std::string_view name, bool fallback) {
        const json::value* found = find(name);
        if (found == nullptr)
            return fallback;
        if (!found->is_bool()) {
            bad(name, json::serialize(*found), "true or false");
            return fallback;
        }
        return found->get_bool();
    }
    std::string text(std::string_view name) {
        const json::value* found = find(name);
        if (found == nullptr)
            return {};
        if (!found->is_string()) {
            bad(name, json::serialize(*found), "a string");
            return {};
        }
        return std::string(std::string_view(found->get_string()));
    }
    // A whole number or a list of them.
    std::vector<int64_t> ids(std::string_view name) {
        const json::value* found = find(name);
        std::vector<int64_t> ids;
        if (found == nullptr)
            return ids;
        json::array one;
        if (!found->is_array())
            one.push_back(*found);
        for (const json::value& entry : found->is_array() ? found->get_array() : one) {
            if (!entry.is_int64()) {
                bad(name, json::serialize(*found), "a whole number or a list of them");
                break;
            }
            ids.push_back(entry.get_int64());
        }
        return ids;
    }
    void bad(std::string_view field, std::string_view found, std::string_view expected) {
        if (!fault_)
            fault_ =
                fail_fault({"BadConfig", shown_, "", fmt::format("field '{}': {}", field, found),
                            expected, "correct the field, or download the file again"})
                    .value();
    }
    Status finish() const {
        if (fault_)
            return fail(*fault_);
        return {};
    }

  private:
    const json::object& object_;
    std::string_view shown_;
    std::optional<Error> fault_;
};

Architecture architecture_from(std::string_view name) {
    for (auto known : {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3})
        if (to_string(known) == name)
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
    config.num_attention_heads = fields.size("num_attention_heads", 0, needed);
    config.vocab_size = fields.size("vocab_size", 0, needed);
    config.max_position_embeddings = fields.size("max_position_embeddings", 2048, false);
    config.num_key_value_heads =
        fields.size("num_key_value_heads", config.num_attention_heads, false);
    bool has_head_dim = fields.find("head_dim") != nullptr;
    uint64_t heads = config.num_attention_heads;
    // Qwen3 fixes 128 where the file is silent; the others divide.
    uint64_t fallback = config.architecture == Architecture::kQwen3 ? 128
                        : heads > 0                                 ? config.hidden_size / heads
                                                                    : 0;
    config.head_dim = fields.size("head_dim", fallback, false);
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

void read_quantisation(Fields& fields, ModelConfig& config) {
    const json::value* found = fields.find("quantization_config");
    if (found == nullptr)
        return;
    const json::object* object = found->if_object();
    const json::value* method = object != nullptr ? object->if_contains("quant_method") : nullptr;
    if (method == nullptr || !method->is_string() || method->get_string().empty()) {
        fields.bad("quantization_config", json::serialize(*found),
                   "an object with the string 'quant_method'");
        return;
    }
    config.quantisation_method = std::string_view(method->get_string());
}

} // namespace

std::string_view to_string(Architecture architecture) {
    switch (architecture) {
    case Architecture::kLlama:
        return "LlamaForCausalLM";
    case Architecture::kQwen2:
        return "Qwen2ForCausalLM";
    case Architecture::kQwen3:
        return "Qwen3ForCausalLM";
    case Architecture::kUnknown:
        break;
    }
    return "unknown";
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
    read_quantisation(fields, config);
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
    config.sliding_window = fields.size("sliding_window", 0, false);
    BERTH_TRY(fields.finish());
    return config;
}

} // namespace berth
