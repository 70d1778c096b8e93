// SPDX-License-Identifier: Apache-2.0
// Goal: a checkpoint is opened only if each tensor that its model needs is there exactly once;
// every known way of being wrong is refused by file and tensor. Method: whole small checkpoints,
// bent.
#include "cache/checkpoint/checkpoint.h"

#include "tests/checkpoint/refusal.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_tensor;
using testing::read_bytes;
using testing::refusal;
using testing::safetensors_file;
using testing::TestCheckpoint;
using testing::write_bytes;
namespace fs = std::filesystem;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

TEST(Checkpoint, EveryKnownArchitectureOpensSingleAndSharded) {
    for (const char* name :
         {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
          "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"}) {
        TestCheckpoint single(name);
        single.write_single();
        auto one = open_checkpoint(single.path());
        ASSERT_TRUE(one) << name << ": " << one.error().message;
        EXPECT_EQ(one->tensors.size(), single.tensors.size());
        TestCheckpoint sharded(name);
        sharded.write_sharded(3);
        auto three = open_checkpoint(sharded.path());
        ASSERT_TRUE(three) << name << ": " << three.error().message;
        EXPECT_EQ(three->files.size(), 3U);
        EXPECT_EQ(three->data_bytes(), one->data_bytes());
    }
}

TEST(Checkpoint, ASafetensorsFileMayBeGivenByItself) {
    TestCheckpoint made;
    made.write_single();
    auto opened = open_checkpoint(made.folder.file("model.safetensors"));
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->folder, made.path());
}

TEST(Checkpoint, AMissingTensorOfADenseModelIsRefusedByName) {
    TestCheckpoint made;
    made.erase("model.layers.1.mlp.up_proj.weight");
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "MissingTensor");
    EXPECT_EQ(error.message,
              "model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight': found nothing, "
              "expected each of the 21 tensors that LlamaForCausalLM needs once; the checkpoint is "
              "incomplete or config.json is another model's");
}

TEST(Checkpoint, AShardThatIsNotOnDiskIsAnIncompleteDownload) {
    TestCheckpoint made;
    made.write_sharded(2);
    fs::remove(made.folder.file(kSecond));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "IncompleteDownload");
    EXPECT_EQ(error.message, "model.safetensors.index.json: found 1 of 2 files, expected also "
                             "model-00002-of-00002.safetensors; incomplete download: fetch the "
                             "missing files");
}

TEST(Checkpoint, AnIndexOfOtherShardsIsStale) {
    TestCheckpoint made;
    made.write_sharded(2);
    auto index = made.file_of(4);
    made.write_index(index);
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "StaleIndex");
    EXPECT_THAT(error.message, HasSubstr("model.safetensors.index.json: found 0 of 4 files"));
    EXPECT_THAT(error.message, HasSubstr(kFirst));
    EXPECT_THAT(error.message, HasSubstr("model-00003-of-00004.safetensors"));
    EXPECT_THAT(error.message, HasSubstr("the index is stale"));
}

TEST(Checkpoint, ATensorThatTheIndexPutsElsewhereIsAStray) {
    TestCheckpoint made;
    made.write_sharded(2);
    auto index = made.file_of(2);
    index["model.norm.weight"] = kSecond; // it lies in the first
    made.write_index(index);
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "StrayTensor");
    EXPECT_EQ(
        error.message,
        "model-00001-of-00002.safetensors: tensor 'model.norm.weight': found it in this file, "
        "expected it in model-00002-of-00002.safetensors alone, as "
        "model.safetensors.index.json says; file and index are of different versions: "
        "download both again");
}

TEST(Checkpoint, ATensorInTwoShardsIsRefusedByName) {
    TestCheckpoint made;
    made.write_sharded(2);
    auto files = made.file_of(2);
    std::vector<testing::TestTensor> second;
    for (const auto& tensor : made.tensors)
        if (files[tensor.name] == kSecond || tensor.name == "model.norm.weight")
            second.push_back(tensor);
    write_bytes(made.folder.file(kSecond), safetensors_file(second));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "StrayTensor");
    EXPECT_THAT(error.message, HasSubstr(std::string(kSecond) + ": tensor 'model.norm.weight'"));
}

TEST(Checkpoint, ATensorThatTheIndexLacksIsAStray) {
    TestCheckpoint made;
    made.write_sharded(2);
    auto index = made.file_of(2);
    index.erase("model.norm.weight");
    made.write_index(index);
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "StrayTensor");
    EXPECT_THAT(error.message,
                HasSubstr("tensor 'model.norm.weight': found a tensor that the index "
                          "lacks"));
}

TEST(Checkpoint, ATensorThatItsShardLacksIsMissing) {
    TestCheckpoint made;
    made.write_sharded(2);
    auto index = made.file_of(2);
    index["model.extra.weight"] = kSecond;
    made.write_index(index);
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "MissingTensor");
    EXPECT_THAT(error.message, HasSubstr("model-00002-of-00002.safetensors: tensor "
                                         "'model.extra.weight': found nothing"));
}

TEST(Checkpoint, AConsolidatedCopyBesideShardsIsIgnoredAndReported) {
    TestCheckpoint made;
    made.write_sharded(2);
    write_bytes(made.folder.file("consolidated.safetensors"), safetensors_file(made.tensors));
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_THAT(opened->ignored_files, ElementsAre("consolidated.safetensors"));
    EXPECT_EQ(opened->tensors.size(), made.tensors.size());
}

TEST(Checkpoint, AShortShardAmongManyIsRefusedByFileAndTensor) {
    TestCheckpoint made;
    made.write_sharded(2);
    std::string bytes = read_bytes(made.folder.file(kSecond));
    write_bytes(made.folder.file(kSecond), bytes.substr(0, bytes.size() - 3));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "TruncatedFile");
    EXPECT_THAT(error.message, HasSubstr("model-00002-of-00002.safetensors: tensor "
                                         "'model.layers.1.mlp.down_proj.weight': found a file of"));
    EXPECT_THAT(error.message, HasSubstr("ends 3 bytes behind the file's end"));
}

TEST(Checkpoint, TrailingBytesAreRefusedUnlessAllowed) {
    TestCheckpoint made;
    made.write_single();
    write_bytes(made.folder.file("model.safetensors"), safetensors_file(made.tensors) + "x");
    EXPECT_EQ(refusal(made.path()).reason, "TrailingBytes");
    CheckpointOptions options;
    options.safetensors.allow_trailing = true;
    EXPECT_TRUE(open_checkpoint(made.path(), options));
}

TEST(Checkpoint, AShapeOtherThanTheConfigurationsIsMisdeclared) {
    TestCheckpoint made;
    made.tensor("model.norm.weight") = make_tensor("model.norm.weight", "F32", {9});
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "ShapeMismatch");
    EXPECT_EQ(error.message,
              "model.safetensors: tensor 'model.norm.weight': found shape [9], expected [8] by "
              "config.json; the file or config.json belongs to another model");
}

TEST(Checkpoint, ATensorThatTheModelDoesNotKnowIsAStray) {
    TestCheckpoint made;
    made.tensors.push_back(make_tensor("model.layers.2.mlp.up_proj.weight", "F32", {16, 8}));
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "StrayTensor");
    EXPECT_THAT(error.message, HasSubstr("model.safetensors: tensor "
                                         "'model.layers.2.mlp.up_proj.weight': found a tensor that "
                                         "the model does not have"));
}

TEST(Checkpoint, StoredRotaryTablesAreIgnoredAndCounted) {
    TestCheckpoint made;
    made.tensors.push_back(make_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}));
    made.write_single();
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_THAT(opened->ignored_tensors,
                ElementsAre("model.layers.0.self_attn.rotary_emb.inv_freq"));
    EXPECT_EQ(opened->tensors.size(), made.tensors.size() - 1);
}

TEST(Checkpoint, ATiedHeadThatIsAbsentIsAnAlias) {
    TestCheckpoint made("LlamaForCausalLM", true);
    made.write_single();
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    ASSERT_EQ(opened->aliases.size(), 1U);
    EXPECT_EQ(opened->aliases[0].name, "lm_head.weight");
    EXPECT_EQ(opened->aliases[0].of, "model.embed_tokens.weight");
    EXPECT_TRUE(opened->ignored_tensors.empty());
}

TEST(Checkpoint, ATiedHeadThatIsStoredAgainIsAnAliasAndTheCopyIsIgnored) {
    TestCheckpoint made("LlamaForCausalLM", true);
    made.tensors.push_back(make_tensor("lm_head.weight", "F32", {32, 8}));
    made.tensors.back().bytes = made.tensor("model.embed_tokens.weight").bytes;
    made.write_single();
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    ASSERT_EQ(opened->aliases.size(), 1U);
    EXPECT_THAT(opened->ignored_tensors, ElementsAre("lm_head.weight"));
    EXPECT_EQ(opened->tensors.size(), made.tensors.size() - 1);
}

TEST(Checkpoint, AnUntiedHeadThatIsAbsentIsRefused) {
    TestCheckpoint made;
    made.erase("lm_head.weight");
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "UntiedHeadMissing");
    EXPECT_THAT(error.message,
                HasSubstr("model.safetensors: tensor 'lm_head.weight': found nothing"));
    EXPECT_THAT(error.message, HasSubstr("set tie_word_embeddings to true"));
}

TEST(Checkpoint, OfAnUnknownArchitectureTheHeaderIsTheList) {
    TestCheckpoint made;
    made.config["architectures"] = json::array{"SomethingElse"};
    made.tensors = {make_tensor("a.b", "F16", {3}), make_tensor("c", "U8", {5})};
    made.write_single();
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->tensors.size(), 2U);
}

TEST(Checkpoint, ShardsWithoutAnIndexAreRefused) {
    TestCheckpoint made;
    made.write_sharded(2);
    fs::remove(made.folder.file("model.safetensors.index.json"));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "MissingIndex");
    EXPECT_THAT(error.message, HasSubstr(kFirst));
}

TEST(Checkpoint, OtherFormatsAndEmptyFoldersAreNamed) {
    TestCheckpoint made;
    made.write_config();
    EXPECT_EQ(refusal(made.path()).reason, "NoCheckpoint");
    write_bytes(made.folder.file("pytorch_model.bin"), "x");
    EXPECT_EQ(refusal(made.path()).reason, "UnsupportedFormat");
    EXPECT_EQ(refusal(made.folder.file("nowhere")).reason, "NoCheckpoint");
}

TEST(Checkpoint, AnIndexMayNotNameFilesOutsideOfItsFolder) {
    TestCheckpoint made;
    made.write_sharded(2);
    auto index = made.file_of(2);
    index["model.norm.weight"] = "../other/model.safetensors";
    made.write_index(index);
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "BadIndex");
    EXPECT_THAT(error.message, HasSubstr("tensor 'model.norm.weight': found the file "
                                         "'../other/model.safetensors'"));
}

TEST(Checkpoint, AMissingConfigurationIsRefused) {
    TestCheckpoint made;
    made.write_single();
    fs::remove(made.folder.file("config.json"));
    EXPECT_THAT(refusal(made.path()).message, HasSubstr("config.json: no such file"));
}

} // namespace
} // namespace berth
