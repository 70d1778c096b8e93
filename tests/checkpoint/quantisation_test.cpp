// SPDX-License-Identifier: Apache-2.0
// Goal: only the quantisations of the table load, and block-wise FP8 only whole: each matrix with
// its factors. Method: configurations as the methods' own tools write them, and small checkpoints
// with one thing wrong.
#include "cache/checkpoint/quantisation.h"

#include "base/json.h"
#include "cache/checkpoint/checkpoint.h"
#include "tests/checkpoint/refusal.h"
#include "tests/weights/test_checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::make_tensor;
using testing::refusal;
using testing::TestCheckpoint;
using testing::write_bytes;

constexpr const char* kWorks =
    "expected one that works: none; block-wise FP8 (quant_method 'fp8', E4M3, weight_block_size "
    "[128, 128])";
constexpr const char* kMatrix = "model.layers.0.mlp.up_proj.weight";
constexpr const char* kScale = "model.layers.0.mlp.up_proj.weight_scale_inv";

json::object block_fp8() {
    return {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
}

Result<Quantisation> parse(const json::object& config) {
    return parse_quantisation(json::serialize(config), "config.json");
}

// A model larger than one block each way, with edges.
struct BlockedCheckpoint : TestCheckpoint {
    explicit BlockedCheckpoint(std::string_view architecture = "LlamaForCausalLM")
        : TestCheckpoint(architecture) {
        config["hidden_size"] = 200;
        config["intermediate_size"] = 260;
        quantise_by_blocks();
    }
};

TEST(QuantisationTable, EveryMethodThatIsNotSupportedIsRefusedByItsNameWithWhatWorks) {
    size_t refused = 0;
    for (const QuantisationMethod& row : quantisation_methods()) {
        if (row.is_supported)
            continue;
        refused += 1;
        TestCheckpoint made;
        made.config["quantization_config"] = {{"quant_method", row.key}, {"bits", 4}};
        made.write_single();
        Error error = refusal(made.path());
        EXPECT_EQ(error.code, ErrorCode::kUnsupported);
        EXPECT_EQ(error.reason, "UnsupportedQuantisation");
        EXPECT_THAT(error.message,
                    HasSubstr(fmt::format(
                        "config.json: found the quantisation method {} (quant_method '{}')",
                        row.name, row.key)));
        EXPECT_THAT(error.message, HasSubstr(kWorks));
    }
    EXPECT_GT(refused, 30U);
}

TEST(QuantisationTable, TheMethodsThatPeopleUseAreInIt) {
    for (const char* name :
         {"awq", "gptq", "gptq_marlin", "marlin", "compressed-tensors", "bitsandbytes", "mxfp4",
          "nvfp4", "modelopt", "hqq", "eetq", "torchao", "quanto", "fbgemm_fp8", "AWQ"}) {
        auto parsed = parse({{"quant_method", name}});
        ASSERT_FALSE(parsed) << name;
        EXPECT_EQ(parsed.error().message.find("does not know"), std::string::npos) << name;
    }
    EXPECT_THAT(parse({{"quant_method", "newest"}}).error().message,
                HasSubstr("the quantisation method that Berth does not know (quant_method "
                          "'newest')"));
}

TEST(QuantisationTable, OtherKindsOfFp8AreRefusedByWhatTheyAre) {
    auto message = [](std::string_view field, const json::value& value) {
        json::object config = block_fp8();
        config[field] = value;
        auto parsed = parse(config);
        EXPECT_FALSE(parsed) << field;
        return parsed ? std::string() : parsed.error().message;
    };
    EXPECT_THAT(message("weight_block_size", nullptr),
                HasSubstr("the quantisation method per-tensor FP8 (quant_method 'fp8')"));
    EXPECT_THAT(message("weight_block_size", {64, 64}), HasSubstr("FP8 in blocks of 64x64"));
    EXPECT_THAT(message("weight_block_size", {1, 128}), HasSubstr("FP8 in blocks of 1x128"));
    EXPECT_THAT(message("weight_block_size", json::array{128}),
                HasSubstr("weight_block_size [128]"));
    EXPECT_THAT(message("fmt", "e5m2"), HasSubstr("of format 'e5m2'"));
    EXPECT_THAT(message("activation_scheme", "static"), HasSubstr("static activation scales"));
    EXPECT_THAT(message("expert_dtype", "fp4"), HasSubstr("with fp4 experts"));
    EXPECT_THAT(message("modules_to_convert", json::array{"lm_head"}),
                HasSubstr("more than linear"));
    EXPECT_THAT(message("modules_to_not_convert", "lm_head"), HasSubstr("as a string"));
    EXPECT_THAT(message("modules_to_not_convert", json::array{"re:.*"}), HasSubstr("plain names"));
}

TEST(QuantisationTable, OlderFilesWithoutAMethodAreKnownByTheirFields) {
    EXPECT_THAT(parse({{"quant_algo", "NVFP4"}}).error().message,
                HasSubstr("ModelOpt \"NVFP4\" (quant_method 'modelopt')"));
    EXPECT_THAT(parse({{"load_in_4bit", true}}).error().message, HasSubstr("bitsandbytes"));
    EXPECT_THAT(parse({{"config_groups", json::object()}}).error().message,
                HasSubstr("compressed-tensors"));
    EXPECT_EQ(parse({{"bits", 4}}).error().reason, "BadConfig");
}

TEST(QuantisationTable, AMethodsOwnFileBesideTheConfigurationIsRefusedIfItSaysSo) {
    struct Case {
        const char* file;
        const char* quantised;
        const char* not_quantised;
        const char* name;
    };
    for (const Case& one :
         {Case{"hf_quant_config.json",
               R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"FP8"}})",
               R"({"quantization":{"quant_algo":null,"kv_cache_quant_algo":"FP8"}})", "ModelOpt"},
          Case{"quantize_config.json", R"({"bits":4,"group_size":128})", "{}", "GPTQ"},
          Case{"quant_config.json", R"({"w_bit":4,"q_group_size":128})", "{}", "AWQ"}}) {
        TestCheckpoint made;
        made.write_single();
        write_bytes(made.folder.file(one.file), one.not_quantised);
        EXPECT_TRUE(open_checkpoint(made.path())) << one.file;
        write_bytes(made.folder.file(one.file), one.quantised);
        Error error = refusal(made.path());
        EXPECT_EQ(error.reason, "UnsupportedQuantisation");
        EXPECT_THAT(error.message, HasSubstr(fmt::format("{}: found the quantisation method {}",
                                                         one.file, one.name)));
        EXPECT_THAT(error.message, HasSubstr(kWorks));
        write_bytes(made.folder.file(one.file), "[");
        EXPECT_EQ(refusal(made.path()).reason, "BadConfig");
    }
}

TEST(QuantisationTable, TheConfigurationsTextDoesNotDependOnTheOrderOfItsFields) {
    auto one = parse_quantisation(
        R"({"weight_block_size":[128,128],"quant_method":"fp8","fmt":"e4m3"})", "config.json");
    auto other = parse_quantisation(
        R"({"fmt":"e4m3", "quant_method":"fp8","weight_block_size":[128, 128]})", "config.json");
    ASSERT_TRUE(one && other);
    EXPECT_EQ(one->config_json, other->config_json);
    EXPECT_EQ(one->config_json,
              R"({"fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]})");
    EXPECT_TRUE(parse({{"quant_method", "none"}})->config_json.empty());
}

TEST(BlockFp8, EveryKnownArchitectureOpensWithItsFactors) {
    for (const char* name :
         {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
          "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"}) {
        BlockedCheckpoint made(name);
        made.write_sharded(2);
        auto opened = open_checkpoint(made.path());
        ASSERT_TRUE(opened) << name << ": " << opened.error().message;
        EXPECT_EQ(opened->tensors.size(), made.tensors.size());
        EXPECT_TRUE(opened->config.block_quantisation);
        EXPECT_EQ(opened->config.quantisation_method, "fp8");
        EXPECT_FALSE(opened->config.quantisation_config_json.empty());
        auto scales = std::count_if(
            made.tensors.begin(), made.tensors.end(),
            [](const testing::TestTensor& tensor) { return tensor.name.ends_with(kScaleSuffix); });
        EXPECT_GE(scales, 14);
    }
}

TEST(BlockFp8, AShardThatIsMissingIsRefusedByName) {
    BlockedCheckpoint made;
    made.write_sharded(2);
    std::filesystem::remove(made.folder.file("model-00002-of-00002.safetensors"));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "IncompleteDownload");
    EXPECT_THAT(error.message, HasSubstr("model-00002-of-00002.safetensors"));
}

TEST(BlockFp8, EveryTensorThatIsMissingIsRefusedByNameItsFactorsToo) {
    BlockedCheckpoint made("Qwen3MoeForCausalLM");
    std::vector<testing::TestTensor> all = made.tensors;
    for (const testing::TestTensor& absent : all) {
        made.tensors = all;
        made.erase(absent.name);
        made.write_single();
        Error error = refusal(made.path());
        EXPECT_TRUE(error.reason == "MissingTensor" || error.reason == "UntiedHeadMissing")
            << error.message;
        EXPECT_THAT(error.message, HasSubstr(fmt::format("tensor '{}'", absent.name)));
    }
}

TEST(BlockFp8, FactorsOfAnotherShapeOrTypeAreRefused) {
    BlockedCheckpoint made;
    made.tensor(kScale) = make_tensor(kScale, "F32", {2, 2});
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "ShapeMismatch");
    EXPECT_EQ(
        error.message,
        "model.safetensors: tensor 'model.layers.0.mlp.up_proj.weight_scale_inv': found shape "
        "[2, 2], expected [3, 2] by config.json, one factor for each block of 128x128; the "
        "file or config.json belongs to another model");
    made.tensor(kScale) = make_tensor(kScale, "F16", {3, 2});
    made.write_single();
    error = refusal(made.path());
    EXPECT_EQ(error.reason, "WrongType");
    EXPECT_THAT(error.message, HasSubstr("found F16, expected F32 or BF16"));
    // As some of Qwen's checkpoints have them.
    made.tensor(kScale) = make_tensor(kScale, "BF16", {3, 2});
    made.write_single();
    EXPECT_TRUE(open_checkpoint(made.path()));
}

TEST(BlockFp8, AMatrixThatIsNotQuantisedIsRefusedUnlessTheConfigurationSaysSo) {
    BlockedCheckpoint made;
    made.tensor(kMatrix) = make_tensor(kMatrix, "BF16", {260, 200});
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "WrongType");
    EXPECT_THAT(error.message, HasSubstr("tensor 'model.layers.0.mlp.up_proj.weight': found BF16, "
                                         "expected F8_E4M3"));
    EXPECT_THAT(error.message, HasSubstr("modules_to_not_convert"));
    made.erase(kScale);
    for (const char* field : {"modules_to_not_convert", "ignored_layers"})
        for (const char* entry : {"model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"}) {
            made.config["quantization_config"] = block_fp8();
            made.config["quantization_config"].as_object()[field] = {"lm_head", entry};
            made.write_single();
            auto opened = open_checkpoint(made.path());
            EXPECT_TRUE(opened) << opened.error().message;
        }
}

TEST(BlockFp8, NamesOfModulesMatchAtDotsOnly) {
    BlockQuantisation blocks;
    blocks.not_converted = {"model.layers.1", "mlp.gate", "kv_b_proj"};
    EXPECT_FALSE(blocks.converts("model.layers.1.mlp.up_proj"));
    EXPECT_TRUE(blocks.converts("model.layers.10.mlp.up_proj"));
    EXPECT_TRUE(blocks.converts("model.layers.2.mlp.gate_proj"));
    EXPECT_FALSE(blocks.converts("model.layers.2.mlp.gate"));
    EXPECT_FALSE(blocks.converts("model.layers.2.self_attn.kv_b_proj"));
}

TEST(BlockFp8, AConfigurationThatHidesTheQuantisationIsFound) {
    BlockedCheckpoint made;
    made.config.erase("quantization_config");
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "WrongType");
    EXPECT_THAT(error.message, HasSubstr("config.json names no quantisation; restore "
                                         "quantization_config"));
    // Factors alone betray it as well.
    for (auto& tensor : made.tensors)
        if (tensor.dtype == "F8_E4M3")
            tensor = make_tensor(tensor.name, "BF16", tensor.shape);
    made.write_single();
    error = refusal(made.path());
    EXPECT_EQ(error.reason, "StrayTensor");
    EXPECT_THAT(error.message, HasSubstr("weight_scale_inv': found a tensor that the model does "
                                         "not have"));
    EXPECT_THAT(error.message, HasSubstr("restore quantization_config"));
}

TEST(BlockFp8, OfAnUnknownArchitectureMatricesAndFactorsGoInPairs) {
    TestCheckpoint made;
    made.config["architectures"] = json::array{"SomethingElse"};
    made.config["quantization_config"] = block_fp8();
    std::vector<testing::TestTensor> whole = {make_tensor("a.weight", "F8_E4M3", {130, 64}),
                                              make_tensor("a.weight_scale_inv", "F32", {2, 1}),
                                              make_tensor("b.weight", "BF16", {4})};
    made.tensors = whole;
    made.write_single();
    EXPECT_TRUE(open_checkpoint(made.path()));
    made.erase("a.weight_scale_inv");
    made.write_single();
    EXPECT_THAT(refusal(made.path()).message,
                HasSubstr("tensor 'a.weight_scale_inv': found nothing"));
    made.tensors = whole;
    made.erase("a.weight");
    made.write_single();
    EXPECT_THAT(refusal(made.path()).message, HasSubstr("tensor 'a.weight': found nothing"));
    made.tensors = whole;
    made.tensors[1] = make_tensor("a.weight_scale_inv", "F32", {1, 1});
    made.write_single();
    EXPECT_EQ(refusal(made.path()).reason, "ShapeMismatch");
    made.tensors = whole;
    made.tensors[0] = make_tensor("a.weight", "BF16", {130, 64});
    made.write_single();
    EXPECT_EQ(refusal(made.path()).reason, "WrongType");
}

} // namespace
} // namespace berth
