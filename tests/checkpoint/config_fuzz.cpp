// SPDX-License-Identifier: Apache-2.0
// Any bytes as config.json, or a good configuration with any fields changed: refused, or sizes from
// which the tensors can be listed, each once, none empty, none beyond what 64 bits count.
#include "cache/checkpoint/config.h"
#include "cache/checkpoint/expected_tensors.h"

#include "base/json.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>
#include <unordered_set>

namespace {

using berth::json::array;
using berth::json::object;
using berth::json::value;

// More than this takes long to list and shows nothing new.
constexpr uint64_t kExpertsListedMax = 4096;
constexpr uint64_t kLayersListedMax = 64;

constexpr const char* kNames[] = {"LlamaForCausalLM",      "Qwen2ForCausalLM",
                                  "Qwen3ForCausalLM",      "Qwen3MoeForCausalLM",
                                  "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"};
constexpr const char* kFields[] = {"architectures",
                                   "hidden_size",
                                   "intermediate_size",
                                   "num_hidden_layers",
                                   "num_attention_heads",
                                   "num_key_value_heads",
                                   "head_dim",
                                   "vocab_size",
                                   "num_experts",
                                   "num_local_experts",
                                   "num_experts_per_tok",
                                   "moe_intermediate_size",
                                   "decoder_sparse_step",
                                   "mlp_only_layers",
                                   "n_routed_experts",
                                   "n_shared_experts",
                                   "first_k_dense_replace",
                                   "moe_layer_freq",
                                   "topk_method",
                                   "num_nextn_predict_layers",
                                   "q_lora_rank",
                                   "kv_lora_rank",
                                   "qk_nope_head_dim",
                                   "qk_rope_head_dim",
                                   "v_head_dim",
                                   "attention_bias",
                                   "mlp_bias",
                                   "tie_word_embeddings",
                                   "rope_scaling",
                                   "rope_theta",
                                   "eos_token_id",
                                   "quantization_config"};
constexpr const char* kQuantFields[] = {"quant_method",
                                        "fmt",
                                        "weight_block_size",
                                        "activation_scheme",
                                        "modules_to_not_convert",
                                        "ignored_layers",
                                        "quant_algo",
                                        "expert_dtype"};

value any_value(FuzzedDataProvider& from) {
    switch (from.ConsumeIntegralInRange(0, 9)) {
    case 0:
        return nullptr;
    case 1:
        return from.ConsumeBool();
    case 2:
        return value(from.ConsumeRandomLengthString(12));
    case 3:
        return from.ConsumeFloatingPoint<double>();
    case 4:
        return from.ConsumeIntegral<uint64_t>();
    case 5:
        return from.ConsumeIntegral<int64_t>();
    case 6:
        return array{from.ConsumeIntegralInRange<int64_t>(-1, 9), 128};
    case 7:
        return object{{"type", from.ConsumeRandomLengthString(6)}};
    default:
        return from.ConsumeIntegralInRange<int64_t>(0, 300);
    }
}

std::string any_text(FuzzedDataProvider& from) {
    if (from.ConsumeProbability<float>() < 0.2F)
        return from.ConsumeRemainingBytesAsString();
    object config;
    for (const char* field : kFields)
        if (std::string_view(field).ends_with("e") || std::string_view(field).ends_with("s") ||
            std::string_view(field).ends_with("k") || std::string_view(field).ends_with("m"))
            config[field] = 8;
    for (const char* field : {"mlp_only_layers", "attention_bias", "mlp_bias", "topk_method",
                              "eos_token_id", "tie_word_embeddings"})
        config.erase(field);
    config["first_k_dense_replace"] = 1;
    config["architectures"] = array{from.PickValueInArray(kNames)};
    if (from.ConsumeBool()) {
        object quantisation = {{"quant_method", "fp8"}, {"weight_block_size", array{128, 128}}};
        if (from.ConsumeBool())
            quantisation[from.PickValueInArray(kQuantFields)] = any_value(from);
        config["quantization_config"] = quantisation;
    }
    for (int changes = from.ConsumeIntegralInRange(0, 4); changes > 0; --changes)
        config[from.PickValueInArray(kFields)] = any_value(from);
    return berth::json::serialize(config);
}

void check_tensors(const berth::ModelConfig& config) {
    auto tensors = berth::expected_tensors(config);
    if (tensors.empty())
        std::abort();
    std::unordered_set<std::string_view> names;
    for (const berth::ExpectedTensor& tensor : tensors) {
        uint64_t bits = 64;
        for (uint64_t axis : tensor.shape)
            if (axis == 0 || __builtin_mul_overflow(bits, axis, &bits))
                std::abort();
        if (!names.insert(tensor.name).second || berth::is_harmless_extra(tensor.name) ||
            berth::is_prediction_layer(config, tensor.name))
            std::abort();
        if (tensor.kind == berth::ElementKind::kScales && !config.block_quantisation)
            std::abort();
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider from(data, size);
    std::string text = any_text(from);
    auto config = berth::parse_config(text, "config.json");
    if (!config) {
        if (config.error().message.find("config.json") == std::string::npos)
            std::abort();
        return 0;
    }
    if (config->architecture == berth::Architecture::kUnknown ||
        config->num_hidden_layers > kLayersListedMax ||
        config->num_experts * config->num_hidden_layers > kExpertsListedMax)
        return 0;
    check_tensors(*config);
    return 0;
}
