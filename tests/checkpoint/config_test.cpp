// SPDX-License-Identifier: Apache-2.0
// Goal: config.json is read as its writers of several years mean it, and a wrong field is named.
#include "cache/checkpoint/config.h"

#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

json::object base_config() {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"hidden_size", 64},
            {"intermediate_size", 128},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"vocab_size", 100}};
}

Result<ModelConfig> parse(const json::object& config) {
    return parse_config(json::serialize(config), "config.json");
}

TEST(ModelConfig, AbsentFieldsTakeTheirArchitecturesDefaults) {
    auto config = parse(base_config());
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->architecture, Architecture::kLlama);
    EXPECT_EQ(config->head_dim, 16U);
    EXPECT_EQ(config->num_key_value_heads, 4U);
    EXPECT_FALSE(config->tie_word_embeddings);
    EXPECT_EQ(config->rope_scaling.type, "default");
    json::object qwen3 = base_config();
    qwen3["architectures"] = json::array{"Qwen3ForCausalLM"};
    EXPECT_EQ(parse(qwen3)->head_dim, 128U);
}

TEST(ModelConfig, RopeIsReadFromTheOlderAndTheNewerPlace) {
    json::object older = base_config();
    older["rope_theta"] = 500000.0;
    older["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}};
    auto config = parse(older);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->rope_theta, 500000.0);
    EXPECT_EQ(config->rope_scaling.type, "llama3");
    EXPECT_EQ(config->rope_scaling.numbers.at("factor"), 8.0);
    json::object newer = base_config();
    newer["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 10.5}};
    config = parse(newer);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->rope_theta, 10.5);
    EXPECT_EQ(config->rope_scaling.type, "linear");
    EXPECT_FALSE(config->rope_scaling.numbers.contains("rope_theta"));
}

TEST(ModelConfig, EndTokensMayBeOneOrMany) {
    json::object config = base_config();
    config["eos_token_id"] = {2, 7};
    config["bos_token_id"] = 1;
    auto parsed = parse(config);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_THAT(parsed->eos_token_ids, ElementsAre(2, 7));
    EXPECT_THAT(parsed->bos_token_ids, ElementsAre(1));
}

TEST(ModelConfig, BothNamesOfTheElementTypeAreRead) {
    json::object config = base_config();
    config["dtype"] = "float32";
    EXPECT_EQ(parse(config)->dtype, "float32");
    config["torch_dtype"] = "bfloat16";
    EXPECT_EQ(parse(config)->dtype, "bfloat16");
}

TEST(ModelConfig, AWrongFieldIsRefusedByName) {
    struct Case {
        const char* field;
        json::value value;
        const char* words;
    };
    const std::vector<Case> cases = {
        {"hidden_size", "64", "found field 'hidden_size': \"64\""},
        {"hidden_size", nullptr, "found field 'hidden_size': nothing"},
        {"num_hidden_layers", 0, "'num_hidden_layers': 0, expected a whole number from 1 to 4096"},
        {"num_hidden_layers", 1000000, "'num_hidden_layers': 1000000"},
        {"num_attention_heads", 5,
         "'num_attention_heads': 5, expected a divisor of hidden_size 64"},
        {"num_key_value_heads", 3, "'num_key_value_heads': 3"},
        {"tie_word_embeddings", 1, "'tie_word_embeddings': 1, expected true or false"},
        {"rope_theta", -1.0, "'rope_theta': -1"},
        {"rope_scaling", 3, "'rope_scaling': 3, expected an object or null"},
        {"eos_token_id", "2", "'eos_token_id'"},
        {"hidden_size", 1 << 25, "expected a whole number from 1 to 16777216"},
        {"quantization_config", "fp8", "'quantization_config': \"fp8\""},
        {"quantization_config", json::object(), "'quantization_config'"},
    };
    for (const Case& one : cases) {
        json::object config = base_config();
        config[one.field] = one.value;
        auto parsed = parse(config);
        ASSERT_FALSE(parsed) << one.field;
        EXPECT_EQ(parsed.error().reason, "BadConfig");
        EXPECT_THAT(parsed.error().message, HasSubstr("config.json: "));
        EXPECT_THAT(parsed.error().message, HasSubstr(one.words));
    }
}

TEST(ModelConfig, ExpertsAndFurtherLayersAreReadByEitherOfTheirNames) {
    json::object qwen = base_config();
    qwen["architectures"] = json::array{"Qwen3MoeForCausalLM"};
    qwen["num_local_experts"] = 6;
    qwen["moe_intermediate_size"] = 32;
    auto config = parse(qwen);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->num_experts, 6U);
    EXPECT_TRUE(config->has_experts(0));
    json::object deepseek = base_config();
    deepseek["architectures"] = json::array{"DeepseekV3ForCausalLM"};
    for (const char* field : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
        deepseek[field] = 8;
    deepseek["q_lora_rank"] = nullptr;
    deepseek["n_routed_experts"] = nullptr;
    deepseek["num_mtp_layers"] = 2;
    config = parse(deepseek);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->num_nextn_predict_layers, 2U);
    EXPECT_EQ(config->head_dim, 16U);
    EXPECT_FALSE(config->has_experts(1));
    EXPECT_FALSE(config->block_quantisation);
}

TEST(ModelConfig, AQuantisationUnderItsOlderNameIsRefusedToo) {
    json::object config = base_config();
    config["compression_config"] = {{"quant_method", "compressed-tensors"}};
    auto parsed = parse(config);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().reason, "UnsupportedQuantisation");
}

TEST(ModelConfig, AnUnknownArchitectureNeedsNoSizes) {
    auto parsed = parse_config(R"({"architectures":["Vision"],"text_config":{}})", "config.json");
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->architecture, Architecture::kUnknown);
    EXPECT_EQ(parsed->architecture_name, "Vision");
}

} // namespace
} // namespace berth
