// SPDX-License-Identifier: Apache-2.0
// Goal: a set that goes to another device and back is the same set, and damage on the way is found.
// Method: the host device and one that behaves like a GPU, in every direction.
#include "cache/load/copy_set.h"

#include "tests/weights/late_copy_device.h"
#include "tests/weights/test_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>

#include <cstring>

namespace berth {
namespace {

using ::testing::HasSubstr;
using testing::LateCopyDevice;
using testing::TestCheckpoint;

class CopySet : public ::testing::Test {
  protected:
    CopySet() {
        made_.config["vocab_size"] = 312'345; // 10 MB each: several pieces, the last one odd
        made_.fill("F32");
        made_.write_single();
    }

    LoadedSet loaded(Device& device, const std::string& capability = "") {
        LoadRequest request;
        request.path = made_.path();
        request.environment = {std::string(to_string(device.capabilities().kind)), capability, "",
                               "any"};
        auto set = run_load(plan_load(request).value(), device, 2, {});
        EXPECT_TRUE(set) << set.error().message;
        return std::move(*set);
    }
    // Same bytes, same manifest; all these devices map memfds.
    void expect_same(const LoadedSet& set, const LoadedSet& other) {
        ASSERT_EQ(set.segment_bytes(), other.segment_bytes());
        auto first = host_->map_read_only(set.segments[0]).value();
        auto second = host_->map_read_only(other.segments[0]).value();
        EXPECT_EQ(std::memcmp(first.data(), second.data(), first.bytes()), 0);
        auto manifest = Manifest::open(other.manifest, other.segment_bytes()).value();
        EXPECT_EQ(manifest.fingerprint(),
                  Manifest::open(set.manifest, set.segment_bytes()).value().fingerprint());
        EXPECT_EQ(other.bytes_read, set.segments[0].bytes);
        EXPECT_EQ(::fcntl(other.segments[0].fd.get(), F_GET_SEALS) & F_SEAL_WRITE, F_SEAL_WRITE);
    }

    TestCheckpoint made_;
    std::unique_ptr<Device> host_ = open_device("host-0").value();
    LateCopyDevice gpu_, other_gpu_;
};

TEST_F(CopySet, GoesFromAGpuToTheHostAndBack) {
    LoadedSet set = loaded(gpu_);
    uint64_t last = 0;
    auto down = copy_set(view_of(set), gpu_, *host_, 3, [&](uint64_t done, uint64_t total) {
        EXPECT_GE(done, last);
        EXPECT_EQ(total, set.segments[0].bytes);
        last = done;
        return Status();
    });
    ASSERT_TRUE(down) << down.error().message;
    expect_same(set, *down);
    auto up = copy_set(view_of(*down), *host_, other_gpu_, 3, {});
    ASSERT_TRUE(up) << up.error().message;
    expect_same(set, *up);
    for (const char* phase : {"allocate", "read", "hash", "seal"})
        EXPECT_TRUE(up->phases.contains(phase)) << phase;
}

TEST_F(CopySet, GoesBetweenGpusAndBetweenHosts) {
    LoadedSet set = loaded(gpu_);
    auto copy = copy_set(view_of(set), gpu_, other_gpu_, 0, {});
    ASSERT_TRUE(copy) << copy.error().message;
    expect_same(set, *copy);
    LoadedSet on_host = loaded(*host_);
    auto host_copy = copy_set(view_of(on_host), *host_, *host_, 0, {});
    ASSERT_TRUE(host_copy) << host_copy.error().message;
    expect_same(on_host, *host_copy);
}

TEST_F(CopySet, ThatWasMadeForAnotherDeviceGoesToTheHostTierAlone) {
    LoadedSet on_host = loaded(*host_);
    auto refused = copy_set(view_of(on_host), *host_, gpu_, 1, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "EnvironmentMismatch");
    LoadedSet newer = loaded(gpu_, "10.0");
    auto down = copy_set(view_of(newer), gpu_, *host_, 1, {});
    ASSERT_TRUE(down) << down.error().message;
    refused = copy_set(view_of(*down), *host_, gpu_, 1, {});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("compute capability '10.0'"));
}

TEST_F(CopySet, WithAFlippedBitIsFoundByItsTensorsNameInEveryDirection) {
    LoadedSet set = loaded(gpu_);
    auto manifest = Manifest::open(set.manifest, set.segment_bytes()).value();
    const std::string name = "model.layers.0.mlp.down_proj.weight";
    uint64_t at = manifest.at(static_cast<size_t>(manifest.find(name))).offset;
    auto damaged = host_->create_segment(set.segments[0].bytes, "berth-weights").value();
    auto whole = host_->map_read_only(set.segments[0]).value();
    std::memcpy(damaged->data(), whole.data(), whole.bytes());
    damaged->data()[at] ^= std::byte{4};
    Segment sealed[] = {damaged->seal().value()};
    SetView view{set.manifest, sealed};
    std::pair<Device*, Device*> ways[] = {
        {&gpu_, host_.get()}, {host_.get(), &gpu_}, {&gpu_, &other_gpu_}};
    for (auto [source, target] : ways) {
        auto refused = copy_set(view, *source, *target, 2, {});
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().reason, "ChecksumMismatch");
        EXPECT_THAT(refused.error().message, HasSubstr("tensor '" + name + "'"));
        EXPECT_THAT(refused.error().message, HasSubstr("the copy on host-0"));
    }
}

TEST_F(CopySet, EndsWithTheErrorOfWhoeverNoLongerWantsIt) {
    LoadedSet set = loaded(gpu_);
    auto stop = [](uint64_t, uint64_t) -> Status {
        return fail(ErrorCode::kUnavailable, "stopped");
    };
    std::pair<Device*, Device*> ways[] = {
        {&gpu_, host_.get()}, {host_.get(), &gpu_}, {&gpu_, &other_gpu_}};
    for (auto [source, target] : ways) {
        auto stopped = copy_set(view_of(set), *source, *target, 2, stop);
        ASSERT_FALSE(stopped);
        EXPECT_EQ(stopped.error().message, "stopped");
    }
}

TEST_F(CopySet, AFailingDeviceEndsItWithTheDevicesError) {
    LoadedSet set = loaded(gpu_);
    int copies = 0;
    other_gpu_.on_copy = [&]() -> Status {
        return ++copies < 3 ? Status() : fail(ErrorCode::kIo, "the device fell off");
    };
    for (Device* source : {host_.get(), static_cast<Device*>(&gpu_)}) {
        copies = 0;
        auto failed = copy_set(view_of(set), *source, other_gpu_, 2, {});
        ASSERT_FALSE(failed);
        EXPECT_EQ(failed.error().message, "the device fell off");
    }
}

TEST_F(CopySet, IsTakenFromDescriptorsAloneOrRefused) {
    LoadedSet set = loaded(*host_);
    auto fds = [&] {
        std::vector<UniqueFd> all;
        all.push_back(set.manifest.duplicate().value());
        all.push_back(set.segments[0].fd.duplicate().value());
        return all;
    };
    auto taken = sealed_set_from(fds());
    ASSERT_TRUE(taken) << taken.error().message;
    EXPECT_EQ(taken->view().segment_bytes(), set.segment_bytes());

    EXPECT_FALSE(sealed_set_from({}));
    auto more = fds();
    more.push_back(set.segments[0].fd.duplicate().value());
    EXPECT_THAT(sealed_set_from(std::move(more)).error().message,
                HasSubstr("3 descriptors came for a manifest and 1 segments"));
    auto swapped = fds();
    std::swap(swapped[0], swapped[1]);
    EXPECT_EQ(sealed_set_from(std::move(swapped)).error().reason, "CorruptManifest");
    std::vector<UniqueFd> device;
    device.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(sealed_set_from(std::move(device)).error().reason, "CorruptManifest");
}

TEST_F(CopySet, CostsWhatTheTargetAndTheWayNeed) {
    std::vector<uint64_t> sizes = {uint64_t{1} << 30, 4096};
    LoadCost up = cost_of_copy(sizes, DeviceKind::kHost, DeviceKind::kCuda, 4);
    LoadCost down = cost_of_copy(sizes, DeviceKind::kCuda, DeviceKind::kHost, 4);
    EXPECT_EQ(up.segment_bytes, sizes);
    EXPECT_EQ(down.segment_bytes, sizes);
    EXPECT_EQ(up.bytes_to_read, (uint64_t{1} << 30) + 4096);
    EXPECT_GT(up.host_staging_bytes, 0U);
    EXPECT_GT(up.device_overhead_bytes, 0U);
    EXPECT_GT(down.host_staging_bytes, 0U);
    EXPECT_EQ(down.device_overhead_bytes, 0U) << "the target is the host";
}

} // namespace
} // namespace berth
