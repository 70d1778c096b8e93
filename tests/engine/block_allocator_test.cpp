// SPDX-License-Identifier: Apache-2.0
// Goal: low blocks go first, none twice, and the top can be given back. Method: the calls one by
// one, then random ones against a plain model.
#include "engine_shim/reference/model/block_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace berth::engine {
namespace {

using Blocks = std::vector<uint32_t>;

TEST(BlockAllocator, GivesTheLowestBlocksFirst) {
    BlockAllocator allocator(6);
    EXPECT_EQ(allocator.allocate(3), Blocks({0, 1, 2}));
    allocator.release({1});
    EXPECT_EQ(allocator.allocate(2), Blocks({1, 3}));
    EXPECT_EQ(allocator.free(), 2U);
}

TEST(BlockAllocator, GivesAllOrNothing) {
    BlockAllocator allocator(2);
    EXPECT_EQ(allocator.allocate(3), std::nullopt);
    EXPECT_EQ(allocator.free(), 2U);
    EXPECT_EQ(allocator.allocate(0), Blocks());
}

TEST(BlockAllocator, ShrinksOnlyOverFreeBlocks) {
    BlockAllocator allocator(4);
    const Blocks held = *allocator.allocate(2);
    EXPECT_FALSE(allocator.resize(1));
    EXPECT_EQ(allocator.total(), 4U);
    EXPECT_TRUE(allocator.resize(2));
    EXPECT_EQ(allocator.free(), 0U);
    allocator.release(held);
    EXPECT_TRUE(allocator.resize(0));
    EXPECT_TRUE(allocator.resize(3));
    EXPECT_EQ(allocator.allocate(3), Blocks({0, 1, 2}));
}

TEST(BlockAllocator, GivesBlocksBelowALimitAloneWhenAsked) {
    BlockAllocator allocator(6);
    const Blocks all = *allocator.allocate(6);
    allocator.release({1, 2, 5});
    EXPECT_EQ(allocator.free_below(3), 2U);
    EXPECT_EQ(allocator.free_below(6), 3U);
    EXPECT_EQ(allocator.allocate_below(3, 3), std::nullopt);
    EXPECT_EQ(allocator.free(), 3U);
    EXPECT_EQ(allocator.allocate_below(2, 3), Blocks({1, 2}));
    EXPECT_EQ(allocator.allocate_below(1, 100), Blocks({5}));
}

TEST(BlockAllocator, NeverGivesABlockTwice) {
    std::mt19937 random(11);
    BlockAllocator allocator(40);
    std::vector<Blocks> held;
    std::set<uint32_t> used;
    for (int round = 0; round < 5000; ++round) {
        if (random() % 2 == 0) {
            if (auto blocks = allocator.allocate(random() % 7)) {
                for (const uint32_t block : *blocks)
                    ASSERT_TRUE(block < 40 && used.insert(block).second) << block;
                held.push_back(std::move(*blocks));
            }
        } else if (!held.empty()) {
            const size_t index = random() % held.size();
            for (const uint32_t block : held[index])
                used.erase(block);
            allocator.release(held[index]);
            held.erase(held.begin() + static_cast<ptrdiff_t>(index));
        }
        ASSERT_EQ(allocator.free() + used.size(), 40U);
    }
}

} // namespace
} // namespace berth::engine
