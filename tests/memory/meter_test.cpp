// SPDX-License-Identifier: Apache-2.0
// Goal: what a process holds is seen from outside. Method: real processes and their /proc files;
// the GPU half runs where there is one.
#include "cache/memory/host_meter.h"

#include "cache/memory/device.h"
#include "cache/memory/nvml.h"
#include "tests/memory/child.h"
#include "tests/memory/pattern.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

using test::Child;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(HostMeter, SeesAGrantGrowAndShrinkInAnotherProcess) {
    ::unsetenv("BERTH_GRANT_STEP");
    Child holder = Child::start({"grant", "host-0", std::to_string(32 * kMiB)});
    ASSERT_EQ(holder.receive().payload, "granted");
    int pid = holder.process.id().pid;
    EXPECT_EQ(host_usage(pid)->grant_bytes, 32 * kMiB);
    EXPECT_EQ(host_usage(pid)->weights_bytes, 0U);
    holder.kill();
    EXPECT_EQ(host_usage(pid).error().code, ErrorCode::kNotFound);

    auto device = open_device("host-0");
    auto grant = (*device)->create_grant(64 * kMiB);
    uint64_t before = host_usage(::getpid())->grant_bytes;
    ASSERT_TRUE((*grant)->resize(16 * kMiB).has_value());
    EXPECT_EQ(host_usage(::getpid())->grant_bytes, before + 16 * kMiB);
    ASSERT_TRUE((*grant)->resize(2 * kMiB).has_value());
    EXPECT_EQ(host_usage(::getpid())->grant_bytes, before + 2 * kMiB);
}

TEST(HostMeter, CountsSharedWeightsOnceOverAllReaders) {
    constexpr uint64_t kBytes = 16 * kMiB;
    auto device = open_device("host-0");
    auto writable = (*device)->create_segment(kBytes, "berth-weights");
    auto pattern = test::pattern_of(kBytes, 9);
    ASSERT_TRUE((*device)->copy_to_device((*writable)->data(), pattern.data(), kBytes).has_value());
    auto segment = (*writable)->seal();
    ASSERT_TRUE(segment.has_value());
    std::vector<Child> readers;
    for (int i = 0; i < 3; ++i) {
        readers.push_back(Child::start({"read", "host-0", std::to_string(kBytes)}));
        readers.back().send("segment", {segment->fd.get()});
    }
    uint64_t shares = 0;
    for (const Child& reader : readers)
        ASSERT_EQ(reader.receive().payload, test::hash_of(pattern));
    for (const Child& reader : readers) {
        auto usage = host_usage_shared(reader.process.id().pid);
        ASSERT_TRUE(usage.has_value());
        EXPECT_EQ(usage->weights_bytes, kBytes);
        shares += usage->weights_pss_bytes;
    }
    EXPECT_NEAR(static_cast<double>(shares), static_cast<double>(kBytes), 0.05 * kBytes);
}

TEST(NvmlMeter, AgreesWithTheDriverOrSaysWhyItCannot) {
    auto nvml = Nvml::open();
    if (!nvml) {
        EXPECT_EQ(nvml.error().code, ErrorCode::kUnsupported);
        EXPECT_FALSE(nvml.error().message.empty());
        GTEST_SKIP() << nvml.error().message;
    }
    auto devices = nvml->devices();
    ASSERT_TRUE(devices.has_value()) << devices.error().message;
    EXPECT_FALSE(nvml->driver_version().empty());
    EXPECT_EQ(nvml->memory("GPU-00000000-0000-0000-0000-000000000000").error().code,
              ErrorCode::kNotFound);
    auto cuda = open_device("cuda");
    if (!cuda)
        GTEST_SKIP() << cuda.error().message;
    auto same = std::find_if(devices->begin(), devices->end(), [&](const NvmlDevice& device) {
        return device.uuid == (*cuda)->id();
    });
    ASSERT_NE(same, devices->end()) << (*cuda)->id() << " is not among NVML's devices";
    EXPECT_EQ(same->compute_capability, (*cuda)->capabilities().compute_capability);
    EXPECT_EQ(same->name, (*cuda)->capabilities().name);
    EXPECT_EQ(nvml->cuda_version(), (*cuda)->capabilities().driver_version);

    constexpr uint64_t kBytes = 1024 * kMiB;
    uint64_t before = nvml->memory(same->uuid)->used_bytes;
    auto grant = (*cuda)->create_grant(kBytes);
    ASSERT_TRUE((*grant)->resize(kBytes).has_value());
    EXPECT_GE(nvml->memory(same->uuid)->used_bytes, before + kBytes);
    auto processes = nvml->processes(same->uuid);
    ASSERT_TRUE(processes.has_value()) << processes.error().message;
    for (const NvmlProcess& process : *processes)
        if (process.pid == ::getpid() && process.used_bytes)
            EXPECT_GE(*process.used_bytes, kBytes);
    ASSERT_TRUE((*grant)->resize(0).has_value());
    EXPECT_LT(nvml->memory(same->uuid)->used_bytes, before + kBytes / 2);
}

} // namespace
} // namespace berth
