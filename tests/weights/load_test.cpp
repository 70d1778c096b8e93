// SPDX-License-Identifier: Apache-2.0
// Goal: what lies in a sealed set is what the files say, on both ways to a device; a file that
// changes, a device that fails and a wish to stop end a load with nothing left. Method: the host
// device, and one that behaves like a GPU: it copies late, so that a slot that is used again too
// early shows.
#include "cache/load/load.h"

#include "cache/load/verify.h"
#include "tests/weights/late_copy_device.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::LateCopyDevice;
using testing::make_tensor;
using testing::TestCheckpoint;
using testing::touch_later;
namespace fs = std::filesystem;

// An embedding of 37 MiB and a bit, so that every way takes many chunks and a last odd one.
void make_large(TestCheckpoint& made) {
    made.config["vocab_size"] = 1'212'345;
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
        for (auto& tensor : made.tensors)
            if (tensor.name == name)
                tensor = make_tensor(name, tensor.dtype, {1'212'345, 8});
}

LoadPlan planned(const TestCheckpoint& made, const std::string& dtype = "auto") {
    LoadRequest request;
    request.path = made.path();
    request.recipe.dtype = dtype;
    request.environment = {"host", "", "", "any"};
    auto plan = plan_load(request);
    EXPECT_TRUE(plan) << plan.error().message;
    return std::move(*plan);
}

// Maps a set and compares every tensor with the bytes that the test wrote.
void expect_bytes(Device& device, const LoadedSet& set, const TestCheckpoint& made) {
    auto manifest = Manifest::open(set.manifest, set.segment_bytes());
    ASSERT_TRUE(manifest) << manifest.error().message;
    auto mapping = device.map_read_only(set.segments[0]);
    ASSERT_TRUE(mapping) << mapping.error().message;
    for (const testing::TestTensor& tensor : made.tensors) {
        int64_t index = manifest->find(tensor.name);
        ASSERT_GE(index, 0) << tensor.name;
        TensorView view = manifest->at(static_cast<size_t>(index));
        ASSERT_EQ(view.bytes, tensor.bytes.size()) << tensor.name;
        EXPECT_EQ(std::memcmp(mapping->data() + view.offset, tensor.bytes.data(), view.bytes), 0)
            << tensor.name;
    }
    auto different = verify(device, *manifest, std::span(&*mapping, 1));
    ASSERT_TRUE(different) << different.error().message;
    EXPECT_TRUE(different->empty());
}

TEST(Load, TheHostsBytesAreTheFilesBytes) {
    TestCheckpoint made("Qwen3ForCausalLM");
    make_large(made);
    made.write_sharded(3);
    auto device = open_device("host-0").value();
    auto set = run_load(planned(made), *device, 3, {});
    ASSERT_TRUE(set) << set.error().message;
    expect_bytes(*device, *set, made);
}

TEST(Load, ARingWithASlowConsumerKeepsEveryByte) {
    TestCheckpoint made("Qwen3ForCausalLM", true);
    make_large(made);
    made.write_sharded(2);
    for (int threads : {1, 2, 7}) {
        LateCopyDevice device;
        auto set = run_load(planned(made), device, threads, {});
        ASSERT_TRUE(set) << set.error().message;
        expect_bytes(device, *set, made);
    }
}

TEST(Load, ATiedHeadSharesTheEmbeddingsBytes) {
    TestCheckpoint made("Qwen2ForCausalLM", true);
    made.write_single();
    auto device = open_device("host-0").value();
    auto set = run_load(planned(made), *device, 1, {});
    ASSERT_TRUE(set) << set.error().message;
    auto manifest = Manifest::open(set->manifest, set->segment_bytes()).value();
    TensorView head = manifest.at(static_cast<size_t>(manifest.find("lm_head.weight")));
    TensorView embedding =
        manifest.at(static_cast<size_t>(manifest.find("model.embed_tokens.weight")));
    EXPECT_EQ(head.alias_of, "model.embed_tokens.weight");
    EXPECT_EQ(head.offset, embedding.offset);
    EXPECT_EQ(head.checksum, embedding.checksum);
}

TEST(Load, ACastHasTheCastsBytesAndChecksums) {
    TestCheckpoint made("LlamaForCausalLM", false, "BF16");
    make_large(made);
    made.write_single();
    for (bool ring : {false, true}) {
        std::unique_ptr<Device> device = open_device("host-0").value();
        if (ring)
            device = std::make_unique<LateCopyDevice>();
        auto set = run_load(planned(made, "float32"), *device, 2, {});
        ASSERT_TRUE(set) << set.error().message;
        auto manifest = Manifest::open(set->manifest, set->segment_bytes()).value();
        auto mapping = device->map_read_only(set->segments[0]).value();
        for (const testing::TestTensor& tensor : made.tensors) {
            TensorView view = manifest.at(static_cast<size_t>(manifest.find(tensor.name)));
            ASSERT_EQ(view.dtype, DType::kF32);
            ASSERT_EQ(view.bytes, 2 * tensor.bytes.size());
            const std::byte* found = mapping.data() + view.offset;
            // A float32 of a bfloat16 is its two bytes above two zeros.
            for (size_t at = 0; at < tensor.bytes.size(); at += 2) {
                ASSERT_EQ(std::memcmp(found + 2 * at + 2, tensor.bytes.data() + at, 2), 0);
                ASSERT_EQ(std::memcmp(found + 2 * at, "\0\0", 2), 0);
            }
        }
        EXPECT_TRUE(verify(*device, manifest, std::span(&mapping, 1))->empty());
    }
}

TEST(Load, VerifyNamesTheTensorWhoseBytesChanged) {
    TestCheckpoint made;
    made.write_single();
    auto device = open_device("host-0").value();
    auto set = run_load(planned(made), *device, 1, {}).value();
    auto manifest = Manifest::open(set.manifest, set.segment_bytes()).value();
    auto sealed = device->map_read_only(set.segments[0]).value();
    auto segment = device->create_segment(set.segments[0].bytes, "berth-weights").value();
    std::memcpy(segment->data(), sealed.data(), sealed.bytes());
    TensorView norm = manifest.at(static_cast<size_t>(manifest.find("model.norm.weight")));
    segment->data()[norm.offset + 3] ^= std::byte{0x10};
    Segment bent = segment->seal().value();
    auto mapping = device->map_read_only(bent).value();
    EXPECT_THAT(verify(*device, manifest, std::span(&mapping, 1)).value(),
                ::testing::ElementsAre("model.norm.weight"));
}

TEST(Load, AFileThatChangedAfterItWasValidatedIsRefused) {
    TestCheckpoint made;
    made.write_single();
    LoadPlan plan = planned(made);
    touch_later(made.folder.file("model.safetensors"));
    auto device = open_device("host-0").value();
    auto set = run_load(plan, *device, 1, {});
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().reason, "FileChanged");
    EXPECT_THAT(set.error().message, HasSubstr("model.safetensors: found"));
}

TEST(Load, AFileThatChangesWhileItIsReadIsRefused) {
    TestCheckpoint made;
    make_large(made);
    made.write_single();
    LateCopyDevice device;
    bool touched = false;
    device.on_copy = [&]() -> Status {
        if (!std::exchange(touched, true))
            touch_later(made.folder.file("model.safetensors"));
        return {};
    };
    auto set = run_load(planned(made), device, 1, {});
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().reason, "FileChanged");
}

TEST(Load, AFileCutOffWhileItIsReadIsAnErrorWithItsOffset) {
    TestCheckpoint made;
    make_large(made);
    made.write_single();
    LateCopyDevice device;
    device.on_copy = [&]() -> Status {
        fs::resize_file(made.folder.file("model.safetensors"), 1 << 20);
        return {};
    };
    auto set = run_load(planned(made), device, 1, {});
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().reason, "ShortRead");
    EXPECT_THAT(set.error().message, HasSubstr("model.safetensors: found"));
    EXPECT_THAT(set.error().message, HasSubstr("bytes at offset"));
}

TEST(Load, AFailedCopyEndsTheLoadWithItsCause) {
    TestCheckpoint made;
    make_large(made);
    made.write_single();
    LateCopyDevice device;
    int copies = 0;
    device.on_copy = [&]() -> Status {
        if (++copies == 5)
            return fail(ErrorCode::kIo, "the bus is gone");
        return {};
    };
    auto set = run_load(planned(made), device, 2, {});
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().message, "the bus is gone");
}

TEST(Load, AfterAFailedWaitNoCopyReadsFromTheRingAnyMore) {
    TestCheckpoint made;
    made.write_single();
    LoadRequest request;
    request.path = made.path();
    request.environment = {"host", "", "", "any"};
    request.ranks = {0, 0, 0}; // so that each tile has three copies under way
    LateCopyDevice device;
    Device* devices[] = {&device, &device, &device};
    int most = 0;
    device.on_wait = [&]() -> Status { // every wait
        most = std::max(most, device.under_way());
        return fail(ErrorCode::kIo, "the lane is broken");
    };
    auto sets = run_load(plan_load(request).value(), devices, 2, {});
    ASSERT_FALSE(sets);
    EXPECT_EQ(sets.error().message, "the lane is broken");
    EXPECT_GE(most, 3);
    EXPECT_EQ(device.under_way(), 0);
}

TEST(Load, ARefusedProgressEndsTheLoad) {
    TestCheckpoint made;
    make_large(made);
    made.write_single();
    LateCopyDevice device;
    auto set = run_load(planned(made), device, 1, [](uint64_t, uint64_t) -> Status {
        return fail(ErrorCode::kUnavailable, "nobody listens");
    });
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().message, "nobody listens");
}

TEST(Load, TheCostCountsTheRingAndTheContext) {
    TestCheckpoint made;
    make_large(made);
    made.write_single();
    LoadPlan plan = planned(made);
    LoadCost host = cost_of(plan, DeviceKind::kHost, 2);
    EXPECT_EQ(host.host_staging_bytes, 2 * ((uint64_t{8} << 20) + 8192));
    EXPECT_EQ(host.device_overhead_bytes, 0U);
    EXPECT_EQ(host.segment_bytes[0] % 4096, 0U);
    LoadCost cuda = cost_of(plan, DeviceKind::kCuda, 2);
    EXPECT_EQ(cuda.host_staging_bytes, (2 * 2 + 4) * ((uint64_t{4} << 20) + 8192));
    EXPECT_GT(cuda.device_overhead_bytes, uint64_t{500} << 20);
    EXPECT_EQ(cuda.segment_bytes[0] % (2 << 20), 0U);
    LoadCost cast = cost_of(planned(made, "bfloat16"), DeviceKind::kHost, 2);
    EXPECT_EQ(cast.host_staging_bytes, 2 * host.host_staging_bytes);
}

} // namespace
} // namespace berth
