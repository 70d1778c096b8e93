// SPDX-License-Identifier: Apache-2.0
// Goal: the node of a device and the processors near it are read as the kernel tells them, and a
// machine that tells nothing, or something odd, costs advice and never a load. Method: a folder in
// the place of /sys; what the threads may really use is asked of the kernel.
#include "cache/memory/numa.h"

#include "base/unique_fd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/mman.h>

#include <filesystem>
#include <thread>

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A machine as a test describes it.
class FakeSysfs {
  public:
    FakeSysfs() {
        std::string form = (std::filesystem::temp_directory_path() / "berth-sysfs-XXXXXX").string();
        EXPECT_NE(::mkdtemp(form.data()), nullptr);
        root_ = form;
    }
    FakeSysfs(const FakeSysfs&) = delete;
    FakeSysfs& operator=(const FakeSysfs&) = delete;
    ~FakeSysfs() { std::filesystem::remove_all(root_); }

    const std::string& root() const { return root_; }
    void write(const std::string& path, const std::string& text) const {
        std::filesystem::path at = root_ + "/" + path;
        std::filesystem::create_directories(at.parent_path());
        EXPECT_TRUE(write_file_atomic(at.string(), text));
    }
    void online(const std::string& nodes) const {
        write("devices/system/node/online", nodes + "\n");
    }
    void node(int number, const std::string& cpus) const {
        write(fmt::format("devices/system/node/node{}/cpulist", number), cpus + "\n");
    }
    void device(const std::string& bus_id, const std::string& node) const {
        write("bus/pci/devices/" + bus_id + "/numa_node", node + "\n");
    }

  private:
    std::string root_;
};

std::vector<int> allowed_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set))
            cpus.push_back(cpu);
    return cpus;
}

TEST(Numa, ListsOfProcessorsAreReadAsTheKernelWritesThem) {
    EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n").value(), ElementsAre(0, 1, 2, 3, 8, 10, 11));
    EXPECT_THAT(parse_cpu_list("7").value(), ElementsAre(7));
    EXPECT_THAT(parse_cpu_list("2,0-1,1").value(), ElementsAre(0, 1, 2));
    EXPECT_THAT(parse_cpu_list("\n").value(), IsEmpty()); // a node of memory alone
}

TEST(Numa, WhatIsNoListIsRefusedByName) {
    for (const char* text : {"a", "1-", "-1", "3-1", "1,,2", "1,", "0-99999999", "1 2", "0x1"}) {
        auto list = parse_cpu_list(text);
        ASSERT_FALSE(list) << text;
        EXPECT_THAT(list.error().message, HasSubstr(text));
    }
}

TEST(Numa, ADevicesNodeIsFoundOnAMachineOfSeveral) {
    FakeSysfs machine;
    machine.online("0-1");
    machine.device("0000:1b:00.0", "0");
    machine.device("0001:9c:00.0", "1");
    EXPECT_EQ(numa_node_of_pci("0000:1b:00.0", machine.root()), 0);
    EXPECT_EQ(numa_node_of_pci("0001:9c:00.0", machine.root()), 1);
    EXPECT_THAT(numa_nodes(machine.root()), ElementsAre(0, 1));
}

TEST(Numa, NoNodeIsPreferredWhereTheKernelTellsNoneOrThereIsOne) {
    FakeSysfs machine;
    EXPECT_EQ(numa_node_of_pci("0000:1b:00.0", machine.root()), kNoNumaNode);
    machine.device("0000:1b:00.0", "0");
    EXPECT_EQ(numa_node_of_pci("0000:1b:00.0", machine.root()), kNoNumaNode);
    machine.online("0");
    EXPECT_EQ(numa_node_of_pci("0000:1b:00.0", machine.root()), kNoNumaNode);
    machine.online("0-1");
    EXPECT_EQ(numa_node_of_pci("0000:1b:00.0", machine.root()), 0);
    // A virtual machine that hides it; a node that is not online; nonsense.
    for (const char* node : {"-1", "5", "many", ""}) {
        machine.device("0000:1b:00.0", node);
        EXPECT_EQ(numa_node_of_pci("0000:1b:00.0", machine.root()), kNoNumaNode) << node;
    }
}

TEST(Numa, AThreadMovesToTheNodesProcessorsOfThoseThatItMayUse) {
    FakeSysfs machine;
    std::vector<int> mine = allowed_cpus();
    int last = mine.back();
    // One that is allowed and one that no machine here has.
    machine.node(1, fmt::format("{},{}", last, 60'000));
    std::vector<int> moved;
    std::thread([&] {
        Status done = prefer_node(1, machine.root());
        EXPECT_TRUE(done) << done.error().message;
        moved = allowed_cpus();
    }).join();
    EXPECT_THAT(moved, ElementsAre(last));
    EXPECT_EQ(allowed_cpus(), mine) << "another thread was moved too";
}

TEST(Numa, AThreadStaysWhereItIsWhenItMayNotGoThere) {
    FakeSysfs machine;
    machine.node(0, "59000-59007");
    machine.node(1, "");
    std::vector<int> mine = allowed_cpus();
    for (int node : {0, 1}) {
        Status done = prefer_node(node, machine.root());
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().code, ErrorCode::kFailedPrecondition);
        EXPECT_THAT(done.error().message, HasSubstr(fmt::format("NUMA node {}", node)));
    }
    Status absent = prefer_node(3, machine.root());
    ASSERT_FALSE(absent);
    EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
    EXPECT_TRUE(prefer_node(kNoNumaNode, machine.root()));
    EXPECT_EQ(allowed_cpus(), mine);
}

TEST(Numa, MemoryIsPlacedOnANodeThatIsThereAndRefusedOnOneThatIsNot) {
    std::vector<int> nodes = numa_nodes();
    if (nodes.empty())
        GTEST_SKIP() << "this kernel knows no nodes";
    constexpr uint64_t kBytes = 1 << 20;
    void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    Status placed = place_on_node(at, kBytes, nodes.back());
    if (!placed)
        EXPECT_EQ(placed.error().code, ErrorCode::kPermissionDenied) << placed.error().message;
    static_cast<std::byte*>(at)[kBytes - 1] = std::byte{1};
    EXPECT_FALSE(place_on_node(at, kBytes, 1023));
    EXPECT_EQ(place_on_node(at, kBytes, 5000).error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(place_on_node(at, kBytes, kNoNumaNode));
    ::munmap(at, kBytes);
}

} // namespace
} // namespace berth
