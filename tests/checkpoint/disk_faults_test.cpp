// SPDX-License-Identifier: Apache-2.0
// Goal: what users found on their disks is refused, or handled and reported, before a tensor's byte
// moves; the message names file, tensor, found, expected and remedy. Method: the faults, made with
// small checkpoints. (checkpoint_test.cpp and quantisation_test.cpp have the others.)
#include "cache/checkpoint/checkpoint.h"

#include "tests/checkpoint/refusal.h"
#include "tests/weights/test_checkpoint.h"

#include <fmt/format.h>
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

constexpr const char* kSecond = "model-00002-of-00002.safetensors";

TEST(DiskFaults, EveryTensorThatIsMissingFromAnyArchitectureIsRefusedByName) {
    for (const char* name : {"LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"}) {
        TestCheckpoint made(name);
        std::vector<testing::TestTensor> all = made.tensors;
        for (const testing::TestTensor& absent : all) {
            made.tensors = all;
            made.erase(absent.name);
            made.write_single();
            EXPECT_THAT(refusal(made.path()).message,
                        HasSubstr(fmt::format("tensor '{}'", absent.name)));
        }
    }
}

TEST(DiskFaults, EveryCutOfAFileIsRefused) {
    TestCheckpoint made;
    made.write_single();
    std::string path = made.folder.file("model.safetensors");
    std::string whole = read_bytes(path);
    for (size_t bytes = 0; bytes < whole.size(); bytes += bytes < 64 ? 1 : 97) {
        write_bytes(path, whole.substr(0, bytes));
        Error error = refusal(made.path());
        EXPECT_EQ(error.reason, "TruncatedFile") << bytes << ": " << error.message;
        EXPECT_THAT(error.message, HasSubstr("model.safetensors"));
        EXPECT_THAT(error.message, HasSubstr(fmt::format("a file of {} bytes", bytes)));
        EXPECT_THAT(error.message, HasSubstr("download the file again"));
    }
}

TEST(DiskFaults, AFileOfZerosIsNoDownload) {
    TestCheckpoint made;
    made.write_single();
    std::string path = made.folder.file("model.safetensors");
    write_bytes(path, std::string(read_bytes(path).size(), '\0'));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "BadHeader");
    EXPECT_THAT(error.message, HasSubstr("model.safetensors: found a header of 0 bytes"));
    EXPECT_THAT(error.message, HasSubstr("nothing written: download it again"));
}

TEST(DiskFaults, WhatDownloadToolsLeaveInAFilesPlaceIsNamed) {
    struct Case {
        std::string_view bytes;
        const char* words;
    };
    for (const Case& one :
         {Case{"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
          Case{"<!DOCTYPE html><html>Sign in</html>", "a web page instead of the file"},
          Case{"<html><body>404</body></html>", "a web page instead of the file"},
          Case{"GGUF and what follows", "a GGUF file"},
          Case{"PK\x03\x04 and what follows", "a zip archive, as torch.save writes it"}})
        for (const char* file : {"model.safetensors", "config.json"}) {
            TestCheckpoint made;
            made.write_single();
            write_bytes(made.folder.file(file), one.bytes);
            Error error = refusal(made.path());
            EXPECT_EQ(error.reason, "NotDownloaded") << file << ": " << error.message;
            EXPECT_THAT(error.message, HasSubstr(std::string(file) + ": found"));
            EXPECT_THAT(error.message, HasSubstr(one.words));
        }
}

TEST(DiskFaults, AnIndexThatIsAPointerIsNamed) {
    TestCheckpoint made;
    made.write_sharded(2);
    write_bytes(made.folder.file("model.safetensors.index.json"),
                "version https://git-lfs.github.com/spec/v1\n");
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "NotDownloaded");
    EXPECT_THAT(error.message, HasSubstr("model.safetensors.index.json: found a Git LFS pointer"));
}

TEST(DiskFaults, ALinkWithoutItsTargetIsAnIncompleteDownload) {
    TestCheckpoint made;
    made.write_sharded(2);
    fs::remove(made.folder.file(kSecond));
    fs::create_symlink("../blobs/gone", made.folder.file(kSecond));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "MissingFile");
    EXPECT_THAT(error.message, HasSubstr(std::string(kSecond) + ": found a name without a file"));
    EXPECT_THAT(error.message, HasSubstr("a link whose target is gone"));
}

TEST(DiskFaults, LinksToFilesAreFollowed) {
    TestCheckpoint made;
    made.write_sharded(2);
    fs::rename(made.folder.file(kSecond), made.folder.file("blob"));
    fs::create_symlink("blob", made.folder.file(kSecond));
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->tensors.size(), made.tensors.size());
}

TEST(DiskFaults, AFolderInAFilesPlaceIsRefused) {
    TestCheckpoint made;
    made.write_config();
    fs::create_directory(made.folder.file("model.safetensors"));
    EXPECT_EQ(refusal(made.path()).reason, "NotAFile");
}

TEST(DiskFaults, TrailingBytesAreRefusedInEveryShard) {
    for (const char* file : {"model-00001-of-00002.safetensors", kSecond}) {
        TestCheckpoint made;
        made.write_sharded(2);
        std::string path = made.folder.file(file);
        write_bytes(path, read_bytes(path) + std::string(100, '\0'));
        Error error = refusal(made.path());
        EXPECT_EQ(error.reason, "TrailingBytes");
        EXPECT_THAT(error.message, HasSubstr(file));
        EXPECT_THAT(error.message, HasSubstr("100 bytes follow the last tensor"));
        EXPECT_THAT(error.message, HasSubstr("--allow-trailing"));
        CheckpointOptions options;
        options.safetensors.allow_trailing = true;
        EXPECT_TRUE(open_checkpoint(made.path(), options));
    }
}

TEST(DiskFaults, AnIndexGoesBeforeASingleFileWhichIsReported) {
    TestCheckpoint made;
    made.write_single();
    made.write_sharded(2);
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->files.size(), 2U);
    EXPECT_THAT(opened->ignored_files, ElementsAre("model.safetensors"));
}

TEST(DiskFaults, AnIndexWithoutItsShardsBesideASingleFileIsStaleAndNotWorkedAround) {
    TestCheckpoint made;
    made.write_single();
    made.write_index(made.file_of(2));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "StaleIndex");
    EXPECT_THAT(error.message, HasSubstr("model.safetensors.index.json: found 0 of 2 files, beside "
                                         "model.safetensors that it does not name"));
    EXPECT_THAT(error.message, HasSubstr("remove the index to load a single file"));
}

TEST(DiskFaults, AnIndexThatNamesMoreShardsThanAreThereIsNotLoadedInPart) {
    TestCheckpoint made;
    made.write_sharded(4);
    fs::remove(made.folder.file("model-00003-of-00004.safetensors"));
    fs::remove(made.folder.file("model-00004-of-00004.safetensors"));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "IncompleteDownload");
    EXPECT_THAT(error.message, HasSubstr("found 2 of 4 files, expected also "
                                         "model-00003-of-00004.safetensors, "
                                         "model-00004-of-00004.safetensors"));
}

TEST(DiskFaults, AConsolidatedCopyBesideASingleFileIsIgnoredAndReported) {
    TestCheckpoint made;
    made.write_single();
    write_bytes(made.folder.file("consolidated.safetensors"), "not even read");
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_THAT(opened->ignored_files, ElementsAre("consolidated.safetensors"));
    EXPECT_EQ(opened->files.size(), 1U);
    EXPECT_EQ(opened->files[0].name, "model.safetensors");
}

TEST(DiskFaults, ShardsOfTwoCheckpointsInOneFolderAreNotMixed) {
    TestCheckpoint made;
    made.write_sharded(3);
    made.write_sharded(2); // its index is the one that stays
    auto opened = open_checkpoint(made.path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->files.size(), 2U);
    EXPECT_EQ(opened->ignored_files.size(), 3U);
    EXPECT_EQ(opened->tensors.size(), made.tensors.size());
}

TEST(DiskFaults, ATiedHeadOfItsOwnBytesIsALieOfTheConfiguration) {
    TestCheckpoint made("LlamaForCausalLM", true);
    made.tensors.push_back(make_tensor("lm_head.weight", "F32", {32, 8}));
    made.tensors.back().bytes = made.tensor("model.embed_tokens.weight").bytes;
    made.tensors.back().bytes.back() ^= 1;
    for (size_t shards : {1U, 2U}) {
        made.write_sharded(shards);
        Error error = refusal(made.path());
        EXPECT_EQ(error.reason, "TiedHeadDiffers");
        EXPECT_THAT(error.message, HasSubstr("tensor 'lm_head.weight': found other bytes"));
        EXPECT_THAT(error.message, HasSubstr("a copy of 'model.embed_tokens.weight'"));
        EXPECT_THAT(error.message, HasSubstr("set tie_word_embeddings to false"));
    }
    made.tensor("lm_head.weight") = make_tensor("lm_head.weight", "BF16", {32, 8});
    made.write_single();
    fs::remove(made.folder.file("model.safetensors.index.json"));
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "TiedHeadDiffers");
    EXPECT_THAT(error.message, HasSubstr("found BF16 beside F32"));
}

TEST(DiskFaults, ALargeTiedHeadIsComparedFromFirstToLastByte) {
    TestCheckpoint made("LlamaForCausalLM", true);
    made.config["vocab_size"] = 4096;
    made.fill();
    made.tensors.push_back(make_tensor("lm_head.weight", "F32", {4096, 8}));
    std::string copy = made.tensor("model.embed_tokens.weight").bytes;
    for (size_t at : {size_t{0}, copy.size() - 1}) {
        made.tensors.back().bytes = copy;
        made.tensors.back().bytes[at] ^= 1;
        made.write_single();
        EXPECT_EQ(refusal(made.path()).reason, "TiedHeadDiffers") << at;
    }
    made.tensors.back().bytes = copy;
    made.write_single();
    EXPECT_TRUE(open_checkpoint(made.path()));
}

TEST(DiskFaults, ATiedHeadOfAnotherShapeIsRefused) {
    TestCheckpoint made("LlamaForCausalLM", true);
    made.tensors.push_back(make_tensor("lm_head.weight", "F32", {33, 8}));
    made.write_single();
    EXPECT_EQ(refusal(made.path()).reason, "ShapeMismatch");
}

TEST(DiskFaults, ADamagedSideFileIsRefusedByName) {
    for (const char* text : {"", "{", "[]", "null", R"({"architectures":[1]})",
                             R"({"hidden_size":8,"hidden_size":9})"}) {
        TestCheckpoint made;
        made.write_single();
        write_bytes(made.folder.file("config.json"), text);
        Error error = refusal(made.path());
        EXPECT_EQ(error.reason, "BadConfig") << text;
        EXPECT_THAT(error.message, HasSubstr("config.json"));
    }
    for (const char* text : {"", "{", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":[]})",
                             R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":"b.bin"}})"}) {
        TestCheckpoint made;
        made.write_sharded(2);
        write_bytes(made.folder.file("model.safetensors.index.json"), text);
        Error error = refusal(made.path());
        EXPECT_EQ(error.reason, "BadIndex") << text;
        EXPECT_THAT(error.message, HasSubstr("model.safetensors.index.json"));
    }
}

TEST(DiskFaults, ATensorThatTheIndexNamesTwiceIsRefused) {
    TestCheckpoint made;
    made.write_sharded(2);
    write_bytes(made.folder.file("model.safetensors.index.json"),
                R"({"weight_map":{"a":"model-00001-of-00002.safetensors",)"
                R"("a":"model-00002-of-00002.safetensors"}})");
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "DuplicateTensor");
    EXPECT_THAT(error.message, HasSubstr("the key 'a' is there twice"));
}

TEST(DiskFaults, AConfigurationOfAnotherSizeIsRefusedByTheFirstTensorThatDiffers) {
    TestCheckpoint made;
    made.config["intermediate_size"] = 17;
    made.write_single();
    Error error = refusal(made.path());
    EXPECT_EQ(error.reason, "ShapeMismatch");
    EXPECT_THAT(error.message, HasSubstr("found shape [16, 8], expected [17, 8] by config.json"));
}

} // namespace
} // namespace berth
