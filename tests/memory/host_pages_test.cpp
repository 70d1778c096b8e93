// SPDX-License-Identifier: Apache-2.0
// Goal: host pages are all there when they are handed out, begin at a page (a huge one where they
// are large), and go when they are dropped; a machine without reserved huge pages, or without
// memory, is no crash. Method: the kernel's own account of the range.
#include "cache/memory/host_pages.h"

#include "cache/memory/numa.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace berth {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t resident_pages(const std::byte* at, uint64_t bytes) {
    std::vector<unsigned char> pages((bytes + 4095) / 4096);
    EXPECT_EQ(::mincore(const_cast<std::byte*>(at), bytes, pages.data()), 0);
    uint64_t count = 0;
    for (unsigned char page : pages)
        count += page & 1;
    return count;
}

bool is_mapped(const std::byte* at) {
    unsigned char page = 0;
    return ::mincore(const_cast<std::byte*>(at), 4096, &page) == 0;
}

TEST(HostPages, AreAllThereBeforeTheyAreUsed) {
    for (uint64_t bytes : {uint64_t{1}, uint64_t{5000}, 2 * kMiB, 67 * kMiB + 4097}) {
        auto pages = HostPages::create(bytes, kNoNumaNode);
        ASSERT_TRUE(pages) << pages.error().message;
        EXPECT_EQ(pages->bytes(), bytes);
        EXPECT_EQ(resident_pages(pages->data(), bytes), (bytes + 4095) / 4096);
        uint64_t step = bytes >= 2 * kMiB ? 2 * kMiB : 4096;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(pages->data()) % step, 0U);
        EXPECT_EQ(pages->data()[0], std::byte{0});
        pages->data()[bytes - 1] = std::byte{1};
    }
}

TEST(HostPages, OfANodeComeFromItOrFromElsewhere) {
    // The last is no node of this machine: advice that cannot be taken.
    std::vector<int> nodes = numa_nodes();
    nodes.push_back(1000);
    for (int node : nodes) {
        auto pages = HostPages::create(3 * kMiB, node);
        ASSERT_TRUE(pages) << pages.error().message;
        EXPECT_EQ(resident_pages(pages->data(), 3 * kMiB), 3 * kMiB / 4096);
    }
}

TEST(HostPages, GoWhenTheirOwnerGoesAndMoveWithIt) {
    std::byte* data = nullptr;
    {
        HostPages kept;
        {
            auto pages = HostPages::create(8 * kMiB, kNoNumaNode);
            ASSERT_TRUE(pages) << pages.error().message;
            data = pages->data();
            kept = std::move(*pages);
        }
        EXPECT_EQ(kept.data(), data);
        EXPECT_EQ(kept.bytes(), 8 * kMiB);
        EXPECT_TRUE(is_mapped(data));
    }
    EXPECT_FALSE(is_mapped(data));
}

TEST(HostPages, NoneOrMoreThanThereIsAreRefused) {
    EXPECT_EQ(HostPages::create(0, kNoNumaNode).error().code, ErrorCode::kInvalidArgument);
    pid_t child = ::fork();
    if (child == 0) {
        // Address space is what can be limited for one process alone.
        rlimit limit{uint64_t{1} << 30, uint64_t{1} << 30};
        ::setrlimit(RLIMIT_AS, &limit);
        auto pages = HostPages::create(uint64_t{8} << 30, kNoNumaNode);
        ::_exit(!pages && pages.error().code == ErrorCode::kResourceExhausted ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

} // namespace
} // namespace berth
