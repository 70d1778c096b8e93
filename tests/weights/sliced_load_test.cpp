// SPDX-License-Identifier: Apache-2.0
// Goal: one load fills every rank with its part of the files, reads each byte once, and quantises
// slices to what the whole would have become. Method: the host device and one that copies late;
// what the ranks hold is put together again and compared with the files.
#include "cache/load/load.h"

#include "cache/load/verify.h"
#include "cache/weights/quantise.h"
#include "tests/weights/late_copy_device.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::LateCopyDevice;
using testing::TestCheckpoint;
using testing::TestTensor;

void make_sliceable(TestCheckpoint& made, std::string_view dtype) {
    made.config["hidden_size"] = 256;
    made.config["intermediate_size"] = 1024;
    made.config["num_attention_heads"] = 8;
    made.config["num_key_value_heads"] = 2;
    made.config["head_dim"] = 128;
    made.config["moe_intermediate_size"] = 512;
    made.config["vocab_size"] = 512;
    made.fill(dtype);
}

LoadPlan planned(const TestCheckpoint& made, const Parallelism& parallelism,
                 const std::string& quantisation = "none") {
    LoadRequest request;
    request.path = made.path();
    request.recipe.parallelism = parallelism;
    request.recipe.quantisation = quantisation;
    request.environment = {"host", "", "", "any"};
    for (uint32_t rank = 0; rank < parallelism.world(); ++rank)
        request.ranks.push_back(rank);
    auto plan = plan_load(request);
    EXPECT_TRUE(plan) << plan.error().message;
    return std::move(*plan);
}

// The bytes of one tensor of a set that is mapped.
struct MappedSet {
    Manifest manifest;
    Mapping mapping;
    std::span<const std::byte> bytes(const std::string& name) const {
        int64_t index = manifest.find(name);
        EXPECT_GE(index, 0) << name;
        TensorView view = manifest.at(static_cast<size_t>(index));
        return {mapping.data() + view.offset, view.bytes};
    }
};

std::vector<MappedSet> map_all(Device& device, const std::vector<LoadedSet>& sets) {
    std::vector<MappedSet> mapped;
    for (const LoadedSet& set : sets) {
        MappedSet one{Manifest::open(set.manifest, set.segment_bytes()).value(),
                      device.map_read_only(set.segments[0]).value()};
        EXPECT_TRUE(verify(device, one.manifest, std::span(&one.mapping, 1)).value().empty());
        mapped.push_back(std::move(one));
    }
    return mapped;
}

// Puts every slice of every rank back into a file's tensor of zeros and compares.
void expect_whole(const LoadPlan& plan, const std::vector<MappedSet>& sets,
                  const TestCheckpoint& made) {
    for (const TestTensor& tensor : made.tensors) {
        std::string whole(tensor.bytes.size(), '\0');
        uint64_t element = bits_of(dtype_from(tensor.dtype)) / 8;
        uint64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
        for (size_t rank = 0; rank < sets.size(); ++rank)
            for (const PlacedTensor& placed : plan.ranks[rank].layout.tensors) {
                if (placed.name != tensor.name)
                    continue;
                const std::byte* from = sets[rank].bytes(tensor.name).data();
                uint64_t width = placed.slice.columns.size() * element;
                for (const Range& range : placed.slice.rows)
                    for (uint64_t row = range.begin; row < range.end; ++row, from += width)
                        std::memcpy(whole.data() +
                                        (row * columns + placed.slice.columns.begin) * element,
                                    from, width);
            }
        EXPECT_TRUE(whole == tensor.bytes) << tensor.name;
    }
}

TEST(SlicedLoad, TheSlicesOfAllRanksAreTheCheckpointOnBothWays) {
    for (const char* architecture : {"LlamaForCausalLM", "Qwen3MoeForCausalLM"})
        for (const char* dtype : {"BF16", "F32"}) {
            TestCheckpoint made(architecture);
            make_sliceable(made, dtype);
            made.write_sharded(3);
            for (Parallelism parallelism :
                 {Parallelism{}, Parallelism{.tensor = 4}, Parallelism{.tensor = 2, .pipeline = 2},
                  Parallelism{.tensor = 2, .expert = 2}, Parallelism{.tensor = 8}}) {
                LoadPlan plan = planned(made, parallelism);
                for (bool late : {false, true}) {
                    std::unique_ptr<Device> device = open_device("host-0").value();
                    if (late)
                        device = std::make_unique<LateCopyDevice>();
                    std::vector<Device*> devices(parallelism.world(), device.get());
                    auto sets = run_load(plan, devices, 2, {});
                    ASSERT_TRUE(sets) << sets.error().message;
                    expect_whole(plan, map_all(*device, *sets), made);
                    EXPECT_EQ((*sets)[0].bytes_read, plan.checkpoint.data_bytes())
                        << "each byte once";
                }
            }
        }
}

TEST(SlicedLoad, OneRankAloneReadsOnlyTheRowsThatItGets) {
    TestCheckpoint made("LlamaForCausalLM");
    make_sliceable(made, "F32");
    made.write_single();
    LoadRequest request;
    request.path = made.path();
    request.recipe.parallelism.tensor = 8;
    request.ranks = {5};
    LoadPlan plan = plan_load(request).value();
    LoadCost cost = cost_of(plan, DeviceKind::kHost, 1);
    EXPECT_LT(cost.bytes_to_read, plan.checkpoint.data_bytes());
    auto device = open_device("host-0").value();
    auto set = run_load(plan, *device, 1, {});
    ASSERT_TRUE(set) << set.error().message;
    EXPECT_EQ(set->bytes_read, cost.bytes_to_read);
}

TEST(SlicedLoad, QuantisedSlicesAreSlicesOfTheQuantisedWhole) {
    for (const char* dtype : {"BF16", "F32"}) {
        TestCheckpoint made("LlamaForCausalLM");
        make_sliceable(made, dtype);
        made.write_single();
        const std::string name = "model.layers.1.mlp.down_proj.weight"; // [256, 1024], columns cut
        const TestTensor& tensor = made.tensor(name);
        std::vector<std::byte> fp8(256 * 1024);
        std::vector<float> scales(2 * 8);
        uint64_t element = bits_of(dtype_from(tensor.dtype)) / 8;
        ASSERT_EQ(quantise_rows(dtype_from(tensor.dtype),
                                reinterpret_cast<const std::byte*>(tensor.bytes.data()),
                                1024 * element, 256, 1024, fp8.data(), scales.data()),
                  0U);
        for (bool late : {false, true}) {
            std::unique_ptr<Device> device = open_device("host-0").value();
            if (late)
                device = std::make_unique<LateCopyDevice>();
            LoadPlan plan = planned(made, {.tensor = 2}, "fp8-block");
            std::vector<Device*> devices(2, device.get());
            auto sets = run_load(plan, devices, 2, {});
            ASSERT_TRUE(sets) << sets.error().message;
            std::vector<MappedSet> mapped = map_all(*device, *sets);
            for (size_t rank = 0; rank < 2; ++rank) {
                auto part = mapped[rank].bytes(name);
                auto factors = mapped[rank].bytes(name + "_scale_inv");
                ASSERT_EQ(part.size(), 256U * 512);
                ASSERT_EQ(factors.size(), 2U * 4 * sizeof(float));
                for (size_t row = 0; row < 256; ++row)
                    ASSERT_EQ(std::memcmp(part.data() + row * 512,
                                          fp8.data() + row * 1024 + rank * 512, 512),
                              0);
                for (size_t row = 0; row < 2; ++row)
                    ASSERT_EQ(std::memcmp(factors.data() + row * 16,
                                          scales.data() + row * 8 + rank * 4, 16),
                              0);
            }
            // What is no linear layer stays as it was.
            EXPECT_EQ(mapped[0].manifest.find("lm_head.weight_scale_inv"), -1);
        }
    }
}

TEST(SlicedLoad, AnElementThatIsNotFiniteIsRefusedByItsTensorsName) {
    TestCheckpoint made("LlamaForCausalLM");
    make_sliceable(made, "BF16");
    std::string& bytes = made.tensor("model.layers.0.self_attn.q_proj.weight").bytes;
    bytes[101] = '\x7f'; // an infinity's or NaN's exponent
    bytes[100] = '\x80';
    made.write_single();
    for (bool late : {false, true}) {
        std::unique_ptr<Device> device = open_device("host-0").value();
        if (late)
            device = std::make_unique<LateCopyDevice>();
        auto set = run_load(planned(made, {}, "fp8-block"), *device, 1, {});
        ASSERT_FALSE(set);
        EXPECT_EQ(set.error().reason, "NotFinite");
        EXPECT_THAT(set.error().message,
                    HasSubstr("tensor 'model.layers.0.self_attn.q_proj.weight': found 1 elements"));
    }
}

} // namespace
} // namespace berth
