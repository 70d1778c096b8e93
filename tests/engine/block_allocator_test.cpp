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
using Keys = std::vector<BlockAllocator::Key>;

TEST(BlockAllocator, GivesTheLowestBlocksFirst) {
    BlockAllocator allocator(6);
    EXPECT_EQ(allocator.allocate(3), Blocks({0, 1, 2}));
    allocator.release(Blocks({1}));
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
    allocator.release(Blocks({1, 2, 5}));
    EXPECT_EQ(allocator.free_below(3), 2U);
    EXPECT_EQ(allocator.free_below(6), 3U);
    EXPECT_EQ(allocator.allocate_below(3, 3), std::nullopt);
    EXPECT_EQ(allocator.free(), 3U);
    EXPECT_EQ(allocator.allocate_below(2, 3), Blocks({1, 2}));
    EXPECT_EQ(allocator.allocate_below(1, 100), Blocks({5}));
}

TEST(BlockAllocator, KeepsWhatBlocksHoldUntilNoEmptyOneIsLeft) {
    BlockAllocator allocator(6);
    const Blocks held = *allocator.allocate(4);
    const Keys keys = {"a", "ab", "abc"};
    allocator.release(held, keys); // the fourth holds nothing whole
    EXPECT_EQ(allocator.free(), 6U);
    EXPECT_EQ(allocator.kept(), 3U);
    EXPECT_EQ(allocator.held(keys), 3U);
    EXPECT_EQ(allocator.held(Keys({"a", "ax"})), 1U);
    EXPECT_EQ(allocator.held(Keys({"x", "a"})), 0U);
    EXPECT_EQ(allocator.allocate(3), Blocks({3, 4, 5}));
    EXPECT_EQ(allocator.held(keys), 3U);
    EXPECT_EQ(allocator.allocate(1), Blocks({2})) << "the last of a chain goes first";
    EXPECT_EQ(allocator.held(keys), 2U);
    EXPECT_EQ(allocator.take(Keys({"a"})), Blocks({0}));
    EXPECT_EQ(allocator.held(keys), 0U) << "it is in use";
    EXPECT_EQ(allocator.free(), 1U);
    allocator.release(Blocks({0}), Keys({"a"}));
    EXPECT_EQ(allocator.take(keys), Blocks({0, 1}));
}

TEST(BlockAllocator, GivesAwayWhatWasReleasedFirstAndKeepsDoubles) {
    BlockAllocator allocator(4);
    const Blocks all = *allocator.allocate(4);
    allocator.release(Blocks({all[2]}), Keys({"old"}));
    allocator.release(Blocks({all[0]}), Keys({"same"}));
    allocator.release(Blocks({all[1]}), Keys({"same"}));
    EXPECT_EQ(allocator.take(Keys({"same"})), Blocks({0}));
    EXPECT_EQ(allocator.held(Keys({"same"})), 1U) << "there is another";
    EXPECT_EQ(allocator.allocate(1), Blocks({2}));
    EXPECT_EQ(allocator.held(Keys({"old"})), 0U);
}

TEST(BlockAllocator, ASmallerOneForgetsWhatItsTopHeld) {
    BlockAllocator allocator(4);
    const Blocks all = *allocator.allocate(4);
    allocator.release(all, Keys({"a", "ab", "abc", "abcd"}));
    EXPECT_TRUE(allocator.resize(2));
    EXPECT_EQ(allocator.held(Keys({"a", "ab", "abc"})), 2U);
    EXPECT_EQ(allocator.allocate_below(1, 1), Blocks({0}));
    EXPECT_EQ(allocator.free(), 1U);
    EXPECT_TRUE(allocator.resize(4));
    EXPECT_EQ(allocator.held(Keys({"abc"})), 0U);
    EXPECT_EQ(allocator.allocate(3), Blocks({1, 2, 3}));
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
