// SPDX-License-Identifier: Apache-2.0
// Goal: the list of what a model needs is the list that its published checkpoints have. Method: the
// published sizes and their counts of tensors; single rules on small models. (test_expected.py
// compares every name and shape with transformers.)
#include "cache/checkpoint/expected_tensors.h"

#include "base/json.h"
#include "cache/checkpoint/checkpoint.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::make_tensor;
using testing::TestCheckpoint;

json::object deepseek_v3() {
    return {{"architectures", {"DeepseekV3ForCausalLM"}},
            {"hidden_size", 7168},
            {"intermediate_size", 18432},
            {"moe_intermediate_size", 2048},
            {"num_hidden_layers", 61},
            {"num_attention_heads", 128},
            {"num_key_value_heads", 128},
            {"vocab_size", 129280},
            {"n_routed_experts", 256},
            {"n_shared_experts", 1},
            {"num_experts_per_tok", 8},
            {"first_k_dense_replace", 3},
            {"moe_layer_freq", 1},
            {"q_lora_rank", 1536},
            {"kv_lora_rank", 512},
            {"qk_nope_head_dim", 128},
            {"qk_rope_head_dim", 64},
            {"v_head_dim", 128},
            {"topk_method", "noaux_tc"},
            {"num_nextn_predict_layers", 1}};
}

ModelConfig parse(const json::object& config) {
    auto parsed = parse_config(json::serialize(config), "config.json");
    EXPECT_TRUE(parsed) << parsed.error().message;
    return parsed ? *parsed : ModelConfig();
}

const ExpectedTensor* find(const std::vector<ExpectedTensor>& tensors, std::string_view name) {
    auto found = std::find_if(tensors.begin(), tensors.end(),
                              [&](const ExpectedTensor& tensor) { return tensor.name == name; });
    return found == tensors.end() ? nullptr : &*found;
}

TEST(ExpectedTensors, OfDeepseekV3AreTheOnesOfItsPublishedIndexWithoutThePredictionLayer) {
    json::object config = deepseek_v3();
    config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                     {"fmt", "e4m3"},
                                     {"quant_method", "fp8"},
                                     {"weight_block_size", {128, 128}}};
    auto tensors = expected_tensors(parse(config));
    // The published index has 91,991, of which layer 61 has 1,564.
    EXPECT_EQ(tensors.size(), 91'991U - 1'564U);
    const ExpectedTensor* scale =
        find(tensors, "model.layers.60.self_attn.kv_a_proj_with_mqa.weight_scale_inv");
    ASSERT_NE(scale, nullptr);
    EXPECT_EQ(scale->shape, (std::vector<uint64_t>{5, 56})); // 576 rows: the last block is half
    EXPECT_EQ(scale->kind, ElementKind::kScales);
    const ExpectedTensor* gate = find(tensors, "model.layers.3.mlp.gate.weight");
    ASSERT_NE(gate, nullptr);
    EXPECT_EQ(gate->kind, ElementKind::kFloat);
    EXPECT_FALSE(gate->is_projection);
    EXPECT_NE(find(tensors, "model.layers.3.mlp.gate.e_score_correction_bias"), nullptr);
    EXPECT_EQ(find(tensors, "model.layers.2.mlp.gate.weight"), nullptr);
}

TEST(ExpectedTensors, OfQwen3MoeAreAsManyAsItsPublishedIndexHas) {
    json::object config = {{"architectures", {"Qwen3MoeForCausalLM"}},
                           {"hidden_size", 2048},
                           {"intermediate_size", 6144},
                           {"moe_intermediate_size", 768},
                           {"num_hidden_layers", 48},
                           {"num_attention_heads", 32},
                           {"num_key_value_heads", 4},
                           {"head_dim", 128},
                           {"vocab_size", 151936},
                           {"num_experts", 128},
                           {"num_experts_per_tok", 8},
                           {"decoder_sparse_step", 1},
                           {"mlp_only_layers", json::array()}};
    auto tensors = expected_tensors(parse(config));
    EXPECT_EQ(tensors.size(), 18'867U);
    const ExpectedTensor* expert =
        find(tensors, "model.layers.47.mlp.experts.127.down_proj.weight");
    ASSERT_NE(expert, nullptr);
    EXPECT_EQ(expert->shape, (std::vector<uint64_t>{2048, 768}));
    EXPECT_TRUE(expert->is_projection);
}

TEST(ExpectedTensors, QwensSparseStepAndDenseLayersDecideWhereExpertsAre) {
    TestCheckpoint made("Qwen3MoeForCausalLM");
    made.config["num_hidden_layers"] = 6;
    made.config["decoder_sparse_step"] = 2;
    made.config["mlp_only_layers"] = json::array{3};
    ModelConfig config = parse(made.config);
    std::vector<bool> has;
    for (uint64_t layer = 0; layer < 6; ++layer)
        has.push_back(config.has_experts(layer));
    EXPECT_EQ(has, (std::vector<bool>{false, true, false, false, false, true}));
}

TEST(ExpectedTensors, DeepseeksFirstLayersAndFrequencyDecideWhereExpertsAre) {
    json::object config = deepseek_v3();
    config["moe_layer_freq"] = 2;
    ModelConfig parsed = parse(config);
    EXPECT_FALSE(parsed.has_experts(2));
    EXPECT_FALSE(parsed.has_experts(3));
    EXPECT_TRUE(parsed.has_experts(4));
    config["n_routed_experts"] = nullptr;
    EXPECT_FALSE(parse(config).has_experts(4));
}

TEST(ExpectedTensors, QueriesWithoutARankAreProjectedInOneStep) {
    json::object config = deepseek_v3();
    config["q_lora_rank"] = nullptr;
    auto tensors = expected_tensors(parse(config));
    const ExpectedTensor* query = find(tensors, "model.layers.0.self_attn.q_proj.weight");
    ASSERT_NE(query, nullptr);
    EXPECT_EQ(query->shape, (std::vector<uint64_t>{128 * 192, 7168}));
    EXPECT_EQ(find(tensors, "model.layers.0.self_attn.q_a_proj.weight"), nullptr);
}

TEST(ExpectedTensors, OnlyARouterWithoutAuxiliaryLossHasABias) {
    json::object config = deepseek_v3();
    constexpr const char* kBias = "model.layers.3.mlp.gate.e_score_correction_bias";
    config.erase("topk_method");
    EXPECT_NE(find(expected_tensors(parse(config)), kBias), nullptr);
    config["topk_method"] = "greedy";
    EXPECT_EQ(find(expected_tensors(parse(config)), kBias), nullptr);
    config.erase("topk_method");
    config["architectures"] = json::array{"DeepseekV2ForCausalLM"};
    EXPECT_EQ(find(expected_tensors(parse(config)), kBias), nullptr);
}

TEST(ExpectedTensors, WhatAWriterMayHaveMeantInTwoWaysMustBeThere) {
    for (const char* field : {"q_lora_rank", "n_routed_experts", "n_shared_experts",
                              "first_k_dense_replace", "kv_lora_rank", "moe_intermediate_size"}) {
        json::object config = deepseek_v3();
        config.erase(field);
        auto parsed = parse_config(json::serialize(config), "config.json");
        ASSERT_FALSE(parsed) << field;
        EXPECT_THAT(parsed.error().message,
                    HasSubstr(std::string("config.json: found field '") + field + "': nothing"));
    }
}

TEST(ExpectedTensors, ExpertsBeyondAnyModelsAreADamagedFile) {
    json::object config = deepseek_v3();
    config["n_routed_experts"] = 65536;
    auto parsed = parse_config(json::serialize(config), "config.json");
    ASSERT_FALSE(parsed);
    EXPECT_THAT(parsed.error().message,
                HasSubstr("61 layers of 65536 experts, expected at most 262144 experts in all"));
    config["n_routed_experts"] = 4;
    parsed = parse_config(json::serialize(config), "config.json");
    ASSERT_FALSE(parsed);
    EXPECT_THAT(parsed.error().message,
                HasSubstr("'num_experts_per_tok': 8, expected at most the 4 experts"));
}

TEST(ExpectedTensors, LayersThatGuessFurtherTokensAreIgnoredAndCounted) {
    TestCheckpoint made("DeepseekV3ForCausalLM");
    made.config["num_nextn_predict_layers"] = 1;
    made.fill();
    size_t own = made.tensors.size();
    made.tensors.push_back(make_tensor("model.layers.2.eh_proj.weight", "F32", {8, 16}));
    made.tensors.push_back(
        make_tensor("model.layers.2.mlp.experts.3.up_proj.weight", "F32", {6, 8}));
    made.write_sharded(2);
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->tensors.size(), own);
    EXPECT_EQ(opened->ignored_tensors.size(), 2U);
    EXPECT_EQ(opened->ignored_bytes, (8U * 16U + 6U * 8U) * 4U);
}

TEST(ExpectedTensors, ALayerBehindThoseIsAStrayWithAHint) {
    TestCheckpoint made("DeepseekV3ForCausalLM");
    made.config["num_nextn_predict_layers"] = 1;
    made.fill();
    made.tensors.push_back(make_tensor("model.layers.3.eh_proj.weight", "F32", {8, 16}));
    made.write_single();
    auto opened = open_checkpoint(made.path());
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().reason, "StrayTensor");
    EXPECT_THAT(opened.error().message, HasSubstr("tensor 'model.layers.3.eh_proj.weight'"));
    EXPECT_THAT(opened.error().message, HasSubstr("num_nextn_predict_layers"));
}

TEST(ExpectedTensors, AMissingExpertIsRefusedByName) {
    for (const char* name : {"Qwen3MoeForCausalLM", "DeepseekV2ForCausalLM"}) {
        TestCheckpoint made(name);
        made.erase("model.layers.1.mlp.experts.2.up_proj.weight");
        made.write_sharded(3);
        auto opened = open_checkpoint(made.path());
        ASSERT_FALSE(opened) << name;
        EXPECT_EQ(opened.error().reason, "MissingTensor");
        EXPECT_THAT(opened.error().message,
                    HasSubstr("tensor 'model.layers.1.mlp.experts.2.up_proj.weight'"));
    }
}

} // namespace
} // namespace berth
