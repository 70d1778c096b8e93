// SPDX-License-Identifier: Apache-2.0
// Goal: a layout never puts two tensors on one byte, and casts what it may alone.
#include "cache/weights/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>

namespace berth {
namespace {

using ::testing::HasSubstr;

Checkpoint checkpoint_of(const std::vector<std::pair<DType, std::vector<uint64_t>>>& tensors) {
    Checkpoint checkpoint;
    checkpoint.folder = "test";
    checkpoint.files.push_back({"model.safetensors", "test/model.safetensors", 0, 0, ""});
    uint64_t at = 100;
    for (const auto& [dtype, shape] : tensors) {
        uint64_t bits = bits_of(dtype);
        for (uint64_t axis : shape)
            bits *= axis;
        StoredTensor stored;
        stored.name = "t" + std::to_string(checkpoint.tensors.size());
        stored.dtype = dtype;
        stored.dtype_name = to_string(dtype);
        stored.shape = shape;
        stored.offset = at;
        stored.bytes = bits / 8;
        at += stored.bytes;
        checkpoint.tensors.push_back({stored, 0});
    }
    return checkpoint;
}

WeightRecipe as(const std::string& dtype) {
    WeightRecipe recipe;
    recipe.dtype = dtype;
    return recipe;
}

TEST(Layout, NeverOverlapsAndIsAlwaysAligned) {
    bool holds = rc::check("aligned, in order, apart, inside", [] {
        static constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kF16,
                                              DType::kU8,  DType::kI64,  DType::kBool};
        std::vector<std::pair<DType, std::vector<uint64_t>>> tensors;
        auto count = *rc::gen::inRange<size_t>(1, 40);
        for (size_t index = 0; index < count; ++index) {
            auto type = kTypes[*rc::gen::inRange<size_t>(0, kTypes.size())];
            std::vector<uint64_t> shape;
            auto rank = *rc::gen::inRange<size_t>(0, 4);
            for (size_t axis = 0; axis < rank; ++axis)
                shape.push_back(*rc::gen::inRange<uint64_t>(0, 300));
            tensors.emplace_back(type, shape);
        }
        tensors.emplace_back(DType::kU8, std::vector<uint64_t>{1});
        auto wish = *rc::gen::element<std::string>("auto", "float32", "bfloat16");
        auto layout = plan_layout(checkpoint_of(tensors), as(wish));
        RC_ASSERT(layout.has_value());
        RC_ASSERT(layout->tensors.size() == tensors.size());
        uint64_t end = 0;
        for (const PlacedTensor& tensor : layout->tensors) {
            RC_ASSERT(tensor.offset % kTensorAlignment == 0U);
            RC_ASSERT(tensor.offset >= end);
            RC_ASSERT(tensor.offset - end < kTensorAlignment);
            end = tensor.offset + tensor.bytes;
            uint64_t bits = bits_of(tensor.dtype);
            for (uint64_t axis : tensor.shape)
                bits *= axis;
            RC_ASSERT(bits == tensor.bytes * 8);
        }
        RC_ASSERT(layout->segment_bytes >= end);
        RC_ASSERT(layout->segment_bytes - end < kTensorAlignment);
    });
    EXPECT_TRUE(holds);
}

TEST(Layout, AutoKeepsEveryTypeAsStored) {
    auto layout =
        plan_layout(checkpoint_of({{DType::kBF16, {3}}, {DType::kF8E4M3, {5}}}), as("auto"));
    ASSERT_TRUE(layout) << layout.error().message;
    EXPECT_EQ(layout->cast_count, 0U);
    EXPECT_EQ(layout->tensors[1].offset, 256U);
    EXPECT_EQ(layout->tensors[1].bytes, 5U);
}

TEST(Layout, AWishCastsFloatsAndLeavesWholeNumbers) {
    auto layout =
        plan_layout(checkpoint_of({{DType::kBF16, {3}}, {DType::kI32, {2}}, {DType::kF32, {2}}}),
                    as("float32"));
    ASSERT_TRUE(layout) << layout.error().message;
    EXPECT_EQ(layout->cast_count, 1U);
    EXPECT_EQ(layout->tensors[0].bytes, 12U);
    EXPECT_EQ(layout->tensors[0].stored_bytes, 6U);
    EXPECT_EQ(layout->tensors[1].dtype, DType::kI32);
    EXPECT_EQ(layout->bytes_to_read, 6U + 8 + 8);
}

TEST(Layout, ACastOfElementsThatCannotBeCastIsRefusedByName) {
    for (DType dtype : {DType::kF8E4M3, DType::kF4, DType::kOpaque, DType::kF64}) {
        auto layout =
            plan_layout(checkpoint_of({{DType::kF32, {1}}, {dtype, {2}}}), as("bfloat16"));
        ASSERT_FALSE(layout);
        EXPECT_EQ(layout.error().reason, "CannotCast");
        EXPECT_THAT(layout.error().message, HasSubstr("model.safetensors: tensor 't1': found"));
    }
    EXPECT_FALSE(plan_layout(checkpoint_of({{DType::kF32, {1}}}), as("float8")));
}

TEST(Layout, MoreDimensionsThanAManifestHoldsAreRefusedByName) {
    auto layout =
        plan_layout(checkpoint_of({{DType::kU8, std::vector<uint64_t>(9, 1)}}), as("auto"));
    ASSERT_FALSE(layout);
    EXPECT_THAT(layout.error().message, HasSubstr("tensor 't0'"));
}

} // namespace
} // namespace berth
