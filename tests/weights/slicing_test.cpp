// SPDX-License-Identifier: Apache-2.0
// Goal: what the ranks get is the checkpoint, no more and no less; what does not divide is refused.
// Method: every slice is put back where the rule says, and compared with the original.
#include "cache/weights/layout.h"
#include "cache/weights/slicing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <map>
#include <set>

namespace berth {
namespace {

using ::testing::HasSubstr;

struct Sizes {
    uint64_t layers = 2, heads = 8, kv_heads = 2, head_dim = 128, hidden = 1024, inner = 2048;
    uint64_t vocabulary = 4096, experts = 0;
};

void add(Checkpoint& checkpoint, const std::string& name, std::vector<uint64_t> shape,
         DType dtype = DType::kBF16) {
    StoredTensor stored;
    stored.name = name;
    stored.dtype = dtype;
    stored.dtype_name = to_string(dtype);
    stored.shape = std::move(shape);
    stored.bytes = bits_of(dtype) / 8;
    for (uint64_t axis : stored.shape)
        stored.bytes *= axis;
    checkpoint.tensors.push_back({stored, 0});
}

void add_mlp(Checkpoint& checkpoint, const std::string& prefix, const Sizes& sizes) {
    add(checkpoint, prefix + "gate_proj.weight", {sizes.inner, sizes.hidden});
    add(checkpoint, prefix + "up_proj.weight", {sizes.inner, sizes.hidden});
    add(checkpoint, prefix + "down_proj.weight", {sizes.hidden, sizes.inner});
}

Checkpoint model_of(const Sizes& sizes) {
    Checkpoint checkpoint;
    checkpoint.folder = "test";
    checkpoint.files.push_back({"model.safetensors", "test/model.safetensors", 0, 0, ""});
    checkpoint.config.num_hidden_layers = sizes.layers;
    checkpoint.config.num_attention_heads = sizes.heads;
    checkpoint.config.num_key_value_heads = sizes.kv_heads;
    add(checkpoint, "model.embed_tokens.weight", {sizes.vocabulary, sizes.hidden});
    for (uint64_t layer = 0; layer < sizes.layers; ++layer) {
        std::string prefix = "model.layers." + std::to_string(layer) + ".";
        uint64_t q = sizes.heads * sizes.head_dim, kv = sizes.kv_heads * sizes.head_dim;
        add(checkpoint, prefix + "input_layernorm.weight", {sizes.hidden});
        add(checkpoint, prefix + "self_attn.q_proj.weight", {q, sizes.hidden});
        add(checkpoint, prefix + "self_attn.q_proj.bias", {q});
        add(checkpoint, prefix + "self_attn.k_proj.weight", {kv, sizes.hidden});
        add(checkpoint, prefix + "self_attn.v_proj.weight", {kv, sizes.hidden});
        add(checkpoint, prefix + "self_attn.q_norm.weight", {sizes.head_dim});
        add(checkpoint, prefix + "self_attn.o_proj.weight", {sizes.hidden, q});
        if (sizes.experts == 0)
            add_mlp(checkpoint, prefix + "mlp.", sizes);
        else
            add(checkpoint, prefix + "mlp.gate.weight", {sizes.experts, sizes.hidden});
        for (uint64_t expert = 0; expert < sizes.experts; ++expert)
            add_mlp(checkpoint, prefix + "mlp.experts." + std::to_string(expert) + ".", sizes);
    }
    add(checkpoint, "model.norm.weight", {sizes.hidden});
    add(checkpoint, "lm_head.weight", {sizes.vocabulary, sizes.hidden});
    return checkpoint;
}

size_t index_of(const Checkpoint& checkpoint, std::string_view name) {
    for (size_t index = 0; index < checkpoint.tensors.size(); ++index)
        if (checkpoint.tensors[index].stored.name == name)
            return index;
    ADD_FAILURE() << name;
    return 0;
}

Result<std::optional<Slice>> slice_of(const Checkpoint& checkpoint, std::string_view name,
                                      Parallelism parallelism, uint32_t rank,
                                      bool quantises = false) {
    return Slicer(checkpoint, parallelism, quantises)
        .slice(index_of(checkpoint, name), place_of(parallelism, rank).value());
}

// How often each cell [row, column] of a tensor is on some rank; cells are whole ranges, so the
// corners of all slices are enough of a grid.
std::map<std::pair<uint64_t, uint64_t>, int> covered(const Checkpoint& checkpoint, size_t index,
                                                     const Parallelism& parallelism) {
    std::vector<Slice> slices;
    std::set<uint64_t> rows, columns;
    Slicer slicer(checkpoint, parallelism, false);
    for (uint32_t rank = 0; rank < parallelism.world(); ++rank) {
        auto slice = slicer.slice(index, place_of(parallelism, rank).value());
        EXPECT_TRUE(slice) << slice.error().message;
        if (!slice || !*slice)
            continue;
        for (const Range& range : (*slice)->rows) {
            rows.insert(range.begin);
            rows.insert(range.end - 1);
        }
        columns.insert((*slice)->columns.begin);
        columns.insert((*slice)->columns.end - 1);
        slices.push_back(**slice);
    }
    const StoredTensor& stored = checkpoint.tensors[index].stored;
    rows.insert({0, stored.shape[0] - 1});
    std::map<std::pair<uint64_t, uint64_t>, int> times;
    for (uint64_t row : rows)
        for (uint64_t column : columns) {
            int& count = times[{row, column}];
            for (const Slice& slice : slices)
                for (const Range& range : slice.rows)
                    count += row >= range.begin && row < range.end &&
                             column >= slice.columns.begin && column < slice.columns.end;
        }
    return times;
}

TEST(Slicing, EveryElementIsOnTheRanksThatItsRuleSaysOverManyShapes) {
    bool holds = rc::check("each cell as often as its kind", [] {
        Sizes sizes;
        sizes.layers = *rc::gen::inRange<uint64_t>(1, 5);
        sizes.kv_heads = *rc::gen::element<uint64_t>(1, 2, 4, 8);
        sizes.heads = sizes.kv_heads * *rc::gen::element<uint64_t>(1, 2, 4);
        sizes.head_dim = *rc::gen::element<uint64_t>(64, 96, 128);
        sizes.inner = 64 * *rc::gen::inRange<uint64_t>(1, 20);
        sizes.experts = *rc::gen::element<uint64_t>(0, 4, 8);
        Parallelism parallelism;
        parallelism.tensor = *rc::gen::element<uint32_t>(1, 2, 4, 8);
        parallelism.pipeline =
            *rc::gen::inRange<uint32_t>(1, static_cast<uint32_t>(sizes.layers) + 1);
        parallelism.data = *rc::gen::element<uint32_t>(1, 2);
        parallelism.expert = *rc::gen::element<uint32_t>(1, 2);
        RC_PRE(sizes.heads % parallelism.tensor == 0);
        RC_PRE((parallelism.tensor * parallelism.data) % parallelism.expert == 0);
        Checkpoint checkpoint = model_of(sizes);
        for (size_t index = 0; index < checkpoint.tensors.size(); ++index) {
            const std::string& name = checkpoint.tensors[index].stored.name;
            auto times = covered(checkpoint, index, parallelism);
            bool is_whole = name.find("norm") != std::string::npos ||
                            name.find("mlp.gate.") != std::string::npos;
            bool is_kv = name.find("k_proj") != std::string::npos ||
                         name.find("v_proj") != std::string::npos;
            bool is_expert = name.find(".experts.") != std::string::npos;
            uint32_t copies = parallelism.data;
            if (is_whole)
                copies *= parallelism.tensor;
            if (is_kv && sizes.kv_heads < parallelism.tensor)
                copies *= parallelism.tensor / static_cast<uint32_t>(sizes.kv_heads);
            if (is_expert && parallelism.expert > 1)
                copies = 1;
            for (const auto& [cell, count] : times)
                RC_ASSERT(count == static_cast<int>(copies));
        }
    });
    EXPECT_TRUE(holds);
}

TEST(Slicing, AFusedProjectionIsCutInEachOfItsParts) {
    Checkpoint checkpoint = model_of({});
    add(checkpoint, "model.layers.0.self_attn.qkv_proj.weight", {(8 + 2 + 2) * 128, 1024});
    add(checkpoint, "model.layers.0.mlp.gate_up_proj.weight", {4096, 1024});
    auto qkv = slice_of(checkpoint, "model.layers.0.self_attn.qkv_proj.weight", {.tensor = 2}, 1);
    ASSERT_TRUE(qkv) << qkv.error().message;
    EXPECT_EQ((*qkv)->rows, (std::vector<Range>{{512, 1024}, {1152, 1280}, {1408, 1536}}));
    auto both = slice_of(checkpoint, "model.layers.0.mlp.gate_up_proj.weight", {.tensor = 4}, 2);
    ASSERT_TRUE(both) << both.error().message;
    EXPECT_EQ((*both)->rows, (std::vector<Range>{{1024, 1536}, {3072, 3584}}));
}

TEST(Slicing, RanksShareAKeyValueHeadWhereThereAreFewerHeadsThanRanks) {
    Checkpoint checkpoint = model_of({});
    const std::string key = "model.layers.1.self_attn.k_proj.weight";
    std::vector<uint64_t> first_rows;
    for (uint32_t rank = 0; rank < 8; ++rank)
        first_rows.push_back(slice_of(checkpoint, key, {.tensor = 8}, rank).value()->rows[0].begin);
    EXPECT_THAT(first_rows, ::testing::ElementsAre(0, 0, 0, 0, 128, 128, 128, 128));
}

TEST(Slicing, WhatDoesNotDivideIsRefusedByFileAndTensor) {
    Sizes sizes;
    sizes.heads = 6;
    sizes.kv_heads = 3;
    Checkpoint checkpoint = model_of(sizes);
    auto heads = slice_of(checkpoint, "model.layers.0.self_attn.q_proj.weight", {.tensor = 4}, 0);
    ASSERT_FALSE(heads);
    EXPECT_EQ(heads.error().reason, "NotDivisible");
    EXPECT_THAT(heads.error().message,
                HasSubstr("model.safetensors: tensor 'model.layers.0.self_attn.q_proj.weight': "
                          "found 6 attention heads, expected a number that 4 ranks divide"));
    auto stages = slice_of(checkpoint, "model.norm.weight", {.pipeline = 3}, 0);
    ASSERT_FALSE(stages);
    EXPECT_THAT(stages.error().message, HasSubstr("2 layers"));
    add(checkpoint, "model.layers.0.mystery.weight", {8, 8});
    auto unknown = slice_of(checkpoint, "model.layers.0.mystery.weight", {.tensor = 3}, 0);
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().reason, "UnknownSlicing");
    EXPECT_TRUE(slice_of(checkpoint, "model.layers.0.mystery.weight", {}, 0));
}

TEST(Slicing, ACutInsideOfAQuantisationBlockIsRefused) {
    Sizes sizes;
    sizes.inner = 1344; // 10.5 blocks
    Checkpoint checkpoint = model_of(sizes);
    const std::string down = "model.layers.0.mlp.down_proj.weight";
    EXPECT_TRUE(slice_of(checkpoint, down, {.tensor = 2}, 0, false));
    auto refused = slice_of(checkpoint, down, {.tensor = 2}, 0, true);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("quantisation blocks of 128"));
}

TEST(Slicing, AFusedPartThatWouldBeginInsideOfABlockIsRefused) {
    Sizes sizes;
    sizes.heads = 4;
    sizes.kv_heads = 1;
    sizes.head_dim = 64;
    Checkpoint checkpoint = model_of(sizes);
    const std::string fused = "model.layers.0.self_attn.qkv_proj.weight";
    add(checkpoint, fused, {(4 + 1 + 1) * 64, 1024});
    EXPECT_TRUE(slice_of(checkpoint, fused, {.tensor = 2}, 0, false));
    // Key and value rows 128 to 191 and 192 to 255 of the slice would share one factor.
    auto refused = slice_of(checkpoint, fused, {.tensor = 2}, 0, true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "NotDivisible");
}

TEST(Slicing, EmptyTensorsAndAbsurdNumbersAreNoTrap) {
    Checkpoint checkpoint = model_of({});
    add(checkpoint, "model.layers.0.extra.gate_proj.weight", {0, 8});
    auto empty = slice_of(checkpoint, "model.layers.0.extra.gate_proj.weight", {.tensor = 2}, 1);
    ASSERT_TRUE(empty) << empty.error().message;
    EXPECT_EQ((*empty)->row_count(), 0U);
    const std::string absurd = "model.layers.0.mlp.experts.18446744073709551615.gate_proj.weight";
    add(checkpoint, absurd, {8, 8});
    EXPECT_TRUE(slice_of(checkpoint, absurd, {.tensor = 2, .expert = 2}, 0));
}

TEST(Slicing, ScalesGoWithTheirBlocks) {
    Checkpoint checkpoint = model_of({});
    checkpoint.config.quantisation_method = "fp8";
    add(checkpoint, "model.layers.0.mlp.down_proj.weight_scale_inv", {8, 16}, DType::kF32);
    add(checkpoint, "model.layers.0.self_attn.k_proj.weight_scale_inv", {2, 8}, DType::kF32);
    auto columns =
        slice_of(checkpoint, "model.layers.0.mlp.down_proj.weight_scale_inv", {.tensor = 4}, 3);
    ASSERT_TRUE(columns) << columns.error().message;
    EXPECT_EQ((*columns)->columns, (Range{12, 16}));
    auto heads =
        slice_of(checkpoint, "model.layers.0.self_attn.k_proj.weight_scale_inv", {.tensor = 8}, 5);
    ASSERT_TRUE(heads) << heads.error().message;
    EXPECT_EQ((*heads)->rows, (std::vector<Range>{{1, 2}}));
}

TEST(Slicing, StagesHoldEqualNumbersOfLayersTheFirstOnesOneMore) {
    std::vector<uint32_t> stages;
    for (uint64_t layer = 0; layer < 10; ++layer)
        stages.push_back(stage_of_layer(layer, 10, 4));
    EXPECT_THAT(stages, ::testing::ElementsAre(0, 0, 0, 1, 1, 1, 2, 2, 3, 3));
}

TEST(Slicing, ATiedHeadIsOnTheLastStageWithItsEmbedding) {
    Checkpoint checkpoint = model_of({});
    checkpoint.tensors.pop_back();
    checkpoint.aliases.push_back({"lm_head.weight", "model.embed_tokens.weight"});
    WeightRecipe recipe;
    recipe.parallelism.pipeline = 2;
    Layout first = plan_layout(checkpoint, recipe).value();
    recipe.rank = 1;
    Layout last = plan_layout(checkpoint, recipe).value();
    EXPECT_TRUE(first.aliases.empty());
    EXPECT_EQ(first.tensors[0].name, "model.embed_tokens.weight");
    EXPECT_EQ(last.tensors[0].name, "model.embed_tokens.weight");
    ASSERT_EQ(last.aliases.size(), 1U);
}

} // namespace
} // namespace berth
