// SPDX-License-Identifier: Apache-2.0
// Goal: what is declared for a publication becomes storages that hold every view of them, or is
// refused by name; and the fingerprint is of inputs alone. Method: declarations, read back through
// a real manifest.
#include "engine_shim/client/publish_plan.h"
#include "tests/client/fake_daemon.h"

#include <gmock/gmock.h>

#include <fstream>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::must;

PublishTensor tensor(const std::string& name, std::vector<uint64_t> shape) {
    PublishTensor made;
    made.name = name;
    made.dtype = DType::kF32;
    made.shape = std::move(shape);
    return made;
}

PublishTensor view(const std::string& name, const std::string& of, std::vector<uint64_t> shape,
                   std::vector<uint64_t> strides, uint64_t offset) {
    PublishTensor made = tensor(name, std::move(shape));
    made.alias_of = of;
    made.strides = std::move(strides);
    made.storage_offset = offset;
    return made;
}

PublishRequest request(std::vector<PublishTensor> tensors) {
    PublishRequest made;
    made.model = "tiny";
    made.producer_name = "test";
    made.producer_version = "1";
    made.tensors = std::move(tensors);
    return made;
}

Manifest written(PublishPlan& plan) {
    plan.parts.fingerprint_json = "{}";
    plan.parts.fingerprint = std::string(64, 'a');
    UniqueFd fd = must(write_manifest(plan.parts));
    return must(Manifest::open(fd, plan.parts.segment_bytes));
}

TensorView at(const Manifest& manifest, std::string_view name) {
    int64_t index = manifest.find(name);
    EXPECT_GE(index, 0) << name;
    return manifest.at(static_cast<size_t>(index));
}

TEST(PublishPlan, ViewsKeepStridesOffsetsAndTheirStorage) {
    auto plan = must(plan_publication(
        request({tensor("qkv", {6, 4}), view("v", "qkv", {2, 4}, {}, 16),
                 view("kt", "qkv", {4, 2}, {1, 4}, 8), view("scalar", "qkv", {}, {}, 0)}),
        4096));
    Manifest manifest = written(plan);
    EXPECT_EQ(at(manifest, "qkv").bytes, 96U);
    EXPECT_TRUE(at(manifest, "qkv").strides.empty());
    TensorView v = at(manifest, "v");
    EXPECT_EQ(v.alias_of, "qkv");
    EXPECT_EQ(v.first_byte(), at(manifest, "qkv").offset + 64);
    EXPECT_THAT(v.strides, ::testing::ElementsAre(4, 1));
    TensorView kt = at(manifest, "kt");
    EXPECT_THAT(kt.strides, ::testing::ElementsAre(1, 4));
    EXPECT_EQ(kt.storage_offset, 8U);
    EXPECT_EQ(at(manifest, "scalar").bytes, 96U);
    EXPECT_EQ(declared_difference(plan.parts, manifest), "");
}

TEST(PublishPlan, AStorageIsAsLargeAsItsLargestView) {
    auto plan = must(
        plan_publication(request({tensor("a", {4}), view("beyond", "a", {4}, {2}, 10)}), 4096));
    EXPECT_EQ(plan.storages.at("a").bytes, (10 + 7) * 4U);
    EXPECT_EQ(at(written(plan), "a").bytes, (10 + 7) * 4U);
}

TEST(PublishPlan, StatesLieInASegmentOfTheirOwn) {
    PublishTensor state = tensor("mean", {3});
    state.kind = TensorKind::kState;
    auto plan =
        must(plan_publication(request({state, tensor("w", {1000}), tensor("x", {1})}), 4096));
    ASSERT_EQ(plan.parts.segment_bytes, (std::vector<uint64_t>{8192, 4096}));
    EXPECT_EQ(plan.storages.at("mean").segment, 1U);
    EXPECT_EQ(plan.storages.at("x").segment, 0U);
    EXPECT_EQ(plan.storages.at("x").offset % kTensorAlignment, 0U);
    Manifest manifest = written(plan);
    EXPECT_TRUE(manifest.has_states());
    EXPECT_EQ(at(manifest, "mean").kind, TensorKind::kState);
    EXPECT_EQ(at(manifest, "w").kind, TensorKind::kWeight);
}

TEST(PublishPlan, WhatCannotBePublishedIsRefusedByName) {
    auto refusal = [](std::vector<PublishTensor> tensors) {
        auto plan = plan_publication(request(std::move(tensors)), 4096);
        return plan ? std::string("accepted") : plan.error().message;
    };
    EXPECT_THAT(refusal({}), HasSubstr("without tensors"));
    EXPECT_THAT(refusal({tensor("a", {1}), tensor("a", {1})}), HasSubstr("'a': it is declared tw"));
    EXPECT_THAT(refusal({view("b", "nowhere", {1}, {}, 0)}), HasSubstr("'nowhere'"));
    EXPECT_THAT(refusal({tensor("a", {1}), view("b", "a", {1}, {}, 0), view("c", "b", {1}, {}, 0)}),
                HasSubstr("name 'a'"));
    EXPECT_THAT(refusal({view("b", "", {2, 2}, {1}, 0)}), HasSubstr("2 dimensions, 1 strides"));
    EXPECT_THAT(refusal({view("b", "", {2, 2}, {UINT64_MAX, 1}, 0)}), HasSubstr("64 bits"));
    EXPECT_THAT(refusal({view("b", "", {2}, {1}, UINT64_MAX)}), HasSubstr("64 bits"));
    PublishTensor state = view("s", "a", {1}, {}, 0);
    state.kind = TensorKind::kState;
    EXPECT_THAT(refusal({tensor("a", {1}), state}), HasSubstr("the other a state"));
    PublishTensor half = view("h", "", {4}, {2}, 0);
    half.dtype = DType::kF4;
    EXPECT_THAT(refusal({half}), HasSubstr("4 bits"));
}

TEST(PublishPlan, TheFingerprintIsOfInputsAlone) {
    testing::ScratchFolder folder;
    std::ofstream(folder.path("weights.bin")) << "abc";
    const protocol::Environment environment{"host", "", "", "berth-1", "any"};
    auto hash = [&](const PublishRequest& of) {
        return must(publish_fingerprint(of, environment)).sha256;
    };
    PublishRequest base = request({tensor("a", {1})});
    base.inputs_json = R"({"b": 1, "a": [2]})";
    base.path = folder.path("weights.bin");
    const std::string before = hash(base);
    PublishRequest same = base;
    same.inputs_json = R"({"a":[2],"b":1})";
    same.config_json = "{}";
    same.tensors.push_back(tensor("b", {1}));
    EXPECT_EQ(hash(same), before);
    for (auto change : std::vector<std::function<void(PublishRequest&)>>{
             [](PublishRequest& r) { r.producer_version = "2"; },
             [](PublishRequest& r) { r.producer_recipe = "fp8"; },
             [](PublishRequest& r) { r.inputs_json = R"({"a":[2],"b":2})"; },
             [](PublishRequest& r) { r.model = "other"; }}) {
        PublishRequest other = base;
        change(other);
        EXPECT_NE(hash(other), before);
    }
    std::ofstream(folder.path("weights.bin")) << "abcd";
    EXPECT_NE(hash(base), before) << "another file under the same path";
    base.inputs_json = "[]";
    EXPECT_THAT(publish_fingerprint(base, environment).error().message, HasSubstr("an object"));
    base.inputs_json = "{}";
    base.path = folder.path("absent");
    EXPECT_THAT(publish_fingerprint(base, environment).error().message, HasSubstr("absent"));
}

} // namespace
} // namespace berth
