// SPDX-License-Identifier: Apache-2.0
// Goal: a fingerprint is the same for the same inputs, differs with each of them, and names the
// field.
#include "cache/weights/fingerprint.h"

#include "base/json.h"
#include "cache/weights/canonical_json.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::read_bytes;
using testing::TempFolder;
using testing::TestCheckpoint;
using testing::touch_later;
using testing::write_bytes;
namespace fs = std::filesystem;

const WeightEnvironment kHost = {"host", "", "", "any"};

Fingerprint made(const std::string& path, const WeightRecipe& recipe = {},
                 const WeightEnvironment& environment = kHost) {
    auto described = describe(path, recipe, environment);
    EXPECT_TRUE(described) << described.error().message;
    return described ? *described : Fingerprint{};
}

TEST(Fingerprint, IsTheHashOfItsDocumentAndTheSameEachTime) {
    TestCheckpoint checkpoint;
    checkpoint.write_sharded(2);
    Fingerprint first = made(checkpoint.path());
    Fingerprint second = made(checkpoint.path());
    EXPECT_EQ(first.sha256, second.sha256);
    EXPECT_EQ(first.document, second.document);
    EXPECT_EQ(first.sha256.size(), 64U);
    EXPECT_EQ(first.id(), first.sha256.substr(0, 16));
    EXPECT_EQ(hash_of_document(first.document).value(), first.sha256);
}

TEST(Fingerprint, DoesNotDependOnWhereTheFilesLie) {
    TestCheckpoint checkpoint;
    checkpoint.write_sharded(2);
    TempFolder elsewhere;
    for (const auto& entry : fs::directory_iterator(checkpoint.path())) {
        fs::path copy = elsewhere.file(entry.path().filename().string());
        fs::copy_file(entry.path(), copy);
        fs::last_write_time(copy, entry.last_write_time());
    }
    EXPECT_EQ(made(checkpoint.path()).sha256, made(elsewhere.path()).sha256);
}

TEST(Fingerprint, OfTheModelAloneDependsNeitherOnSlicesNorOnThePlatform) {
    TestCheckpoint checkpoint;
    checkpoint.write_sharded(2);
    WeightRecipe part;
    part.parallelism.tensor = 2;
    part.rank = 1;
    const std::string whole = hash_of_model(made(checkpoint.path()).document).value();
    EXPECT_EQ(hash_of_model(made(checkpoint.path(), part).document).value(), whole);
    EXPECT_EQ(
        hash_of_model(made(checkpoint.path(), {}, {"cuda", "9.0", "13.0", "any"}).document).value(),
        whole);
    TestCheckpoint another;
    another.write_sharded(3);
    EXPECT_NE(hash_of_model(made(another.path()).document).value(), whole);
    WeightRecipe narrow;
    narrow.dtype = "bfloat16";
    EXPECT_NE(hash_of_model(made(checkpoint.path(), narrow).document).value(), whole);
}

TEST(Fingerprint, DoesNotDependOnTheOrderOfKeys) {
    auto one = json::parse(R"({"b":[1,{"y":2,"x":3}],"a":"t"})", "a test").value();
    auto other = json::parse(R"({"a":"t","b":[1,{"x":3,"y":2}]})", "a test").value();
    EXPECT_EQ(canonical_json(one), canonical_json(other));
    EXPECT_EQ(canonical_json(one), R"({"a":"t","b":[1,{"x":3,"y":2}]})");
}

struct Change {
    std::string field; // in the difference
    std::function<void(TestCheckpoint&, WeightRecipe&, WeightEnvironment&)> apply;
};

TEST(Fingerprint, EachInputIsAFieldThatAMismatchNames) {
    const std::string kFile = "checkpoint.files.model.safetensors.";
    const std::vector<Change> changes = {
        {"dtype", [](auto&, WeightRecipe& recipe, auto&) { recipe.dtype = "bfloat16"; }},
        {"quantisation.method",
         [](auto&, WeightRecipe& recipe, auto&) { recipe.quantisation = "int8"; }},
        {"slicing.tp", [](auto&, WeightRecipe& recipe, auto&) { recipe.parallelism.tensor = 2; }},
        {"slicing.rank", [](auto&, WeightRecipe& recipe, auto&) { recipe.rank = 1; }},
        {"slicing.pp", [](auto&, WeightRecipe& recipe, auto&) { recipe.parallelism.pipeline = 2; }},
        {"slicing.dp", [](auto&, WeightRecipe& recipe, auto&) { recipe.parallelism.data = 2; }},
        {"slicing.ep", [](auto&, WeightRecipe& recipe, auto&) { recipe.parallelism.expert = 2; }},
        {"environment.deviceKind",
         [](auto&, auto&, WeightEnvironment& wanted) { wanted.device_kind = "cuda"; }},
        {"environment.computeCapability",
         [](auto&, auto&, WeightEnvironment& wanted) { wanted.compute_capability = "9.0"; }},
        {"environment.cudaVersion",
         [](auto&, auto&, WeightEnvironment& wanted) { wanted.cuda_version = "13.0"; }},
        {"checkpoint.configHash",
         [](TestCheckpoint& files, auto&, auto&) {
             files.config["hidden_act"] = "gelu";
             files.write_config();
         }},
        {kFile + "mtimeNs", [](TestCheckpoint& files, auto&,
                               auto&) { touch_later(files.folder.file("model.safetensors")); }},
        {kFile + "headerHash",
         [](TestCheckpoint& files, auto&, auto&) {
             std::swap(files.tensors[0], files.tensors[1]);
             files.write_single();
         }},
    };
    for (const Change& change : changes) {
        TestCheckpoint checkpoint;
        checkpoint.write_single();
        Fingerprint before = made(checkpoint.path());
        WeightRecipe recipe;
        WeightEnvironment environment = kHost;
        change.apply(checkpoint, recipe, environment);
        Fingerprint after = made(checkpoint.path(), recipe, environment);
        EXPECT_NE(before.sha256, after.sha256) << change.field;
        auto differences = compare(before.document, after.document);
        ASSERT_TRUE(differences) << differences.error().message;
        std::vector<std::string> fields;
        for (const FieldDifference& difference : *differences)
            fields.push_back(difference.field);
        EXPECT_THAT(fields, ::testing::Contains(change.field));
    }
}

TEST(Fingerprint, WhatIsWantedMayLeaveThePlatformOpen) {
    TestCheckpoint checkpoint;
    checkpoint.write_single();
    Fingerprint cached = made(checkpoint.path(), {}, {"cuda", "9.0", "13.0", "2.11.0"});
    Fingerprint open = made(checkpoint.path(), {}, {"", "", "", "any"});
    EXPECT_TRUE(compare(cached.document, open.document)->empty());
    Fingerprint other = made(checkpoint.path(), {}, {"cuda", "8.0", "", "2.10.0"});
    auto differences = compare(cached.document, other.document).value();
    ASSERT_EQ(differences.size(), 2U);
    EXPECT_EQ(differences[0].field, "environment.computeCapability");
    EXPECT_EQ(differences[0].cached, "9.0");
    EXPECT_EQ(differences[0].wanted, "8.0");
    std::string table = difference_table(differences);
    EXPECT_THAT(table, HasSubstr("environment.computeCapability  9.0     8.0"));
    EXPECT_THAT(table, HasSubstr("environment.torchVersion       2.11.0  2.10.0"));
}

TEST(Fingerprint, UnchangedFilesAreTheSameWithoutAByteRead) {
    TestCheckpoint checkpoint;
    checkpoint.write_sharded(2);
    Fingerprint fingerprint = made(checkpoint.path());
    EXPECT_TRUE(still_same(fingerprint.document, checkpoint.path()));
    EXPECT_TRUE(still_same(fingerprint.document, checkpoint.path() + "/"));
    EXPECT_FALSE(still_same(fingerprint.document, "/nowhere"));
    EXPECT_FALSE(still_same("{}", checkpoint.path()));
}

TEST(Fingerprint, EveryChangeOnDiskIsNamed) {
    const std::string kShard = "model-00002-of-00002.safetensors";
    const std::string kIndex = "model.safetensors.index.json";
    for (const std::string& name : {kShard, kIndex, std::string("config.json")}) {
        TestCheckpoint checkpoint;
        checkpoint.write_sharded(2);
        Fingerprint fingerprint = made(checkpoint.path());
        touch_later(checkpoint.folder.file(name));
        auto changes = changes_on_disk(fingerprint.document, checkpoint.path()).value();
        ASSERT_EQ(changes.size(), 1U) << name;
        EXPECT_EQ(changes[0].field, name + ".mtimeNs");
        fs::remove(checkpoint.folder.file(name));
        changes = changes_on_disk(fingerprint.document, checkpoint.path()).value();
        ASSERT_EQ(changes.size(), 1U) << name;
        EXPECT_EQ(changes[0].field, name);
    }
}

TEST(Fingerprint, AnIndexThatAppearsIsAChange) {
    TestCheckpoint checkpoint;
    checkpoint.write_single();
    Fingerprint fingerprint = made(checkpoint.path());
    checkpoint.write_sharded(2);
    write_bytes(checkpoint.folder.file("config.json"),
                read_bytes(checkpoint.folder.file("config.json")));
    auto changes = changes_on_disk(fingerprint.document, checkpoint.path()).value();
    bool named = false;
    for (const FieldDifference& change : changes)
        named = named || change.field == "model.safetensors.index.json";
    EXPECT_TRUE(named);
}

} // namespace
} // namespace berth
