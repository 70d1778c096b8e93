// SPDX-License-Identifier: Apache-2.0
// How ranks find each other, and notice when one is gone.
#include "tests/ranks/rank_fakes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <future>
#include <memory>
#include <stdexcept>

namespace berth::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Nanoseconds kPatience = std::chrono::seconds(60);

using Links = Result<std::unique_ptr<RankLinks>>;

// Whom a rank was told to be gone.
struct Loss {
    std::promise<std::string> told;
    RankLinks::Lost call() {
        return [this](uint32_t rank, const std::string& why) {
            told.set_value(std::to_string(rank) + ": " + why);
        };
    }
};

std::future<Links> join(RankStore& store, uint32_t rank, uint32_t ranks, Loss& loss,
                        const std::string& alike = "the same", Nanoseconds timeout = kPatience) {
    return std::async(std::launch::async, [&store, rank, ranks, &loss, alike, timeout] {
        return RankLinks::meet({rank, ranks, alike, "host-" + std::to_string(rank)}, store, timeout,
                               loss.call());
    });
}

// As many as there are losses; each must come.
template <size_t N>
std::array<std::unique_ptr<RankLinks>, N> meet_all(RankStore& store, Loss (&losses)[N]) {
    std::future<Links> joining[N];
    for (uint32_t rank = 0; rank < N; ++rank)
        joining[rank] = join(store, rank, N, losses[rank]);
    std::array<std::unique_ptr<RankLinks>, N> links;
    for (uint32_t rank = 0; rank < N; ++rank) {
        Links met = joining[rank].get();
        if (!met)
            throw std::runtime_error(met.error().message);
        links[rank] = std::move(*met);
    }
    return links;
}

TEST(Meeting, ThreeRanksMeetAndTheEndOfOneIsToldToTheOthersByItsNumber) {
    MemoryStore store;
    Loss losses[3];
    auto links = meet_all(store, losses);
    EXPECT_FALSE(links[1]->shares_device());
    links[2].reset();
    EXPECT_THAT(losses[0].told.get_future().get(), HasSubstr("2: its process has ended"));
    EXPECT_THAT(losses[1].told.get_future().get(), HasSubstr("2: its process has ended"));
}

TEST(Meeting, ARankThatSaysWhyItEndsIsQuoted) {
    MemoryStore store;
    Loss losses[3];
    auto links = meet_all(store, losses);
    links[1]->say_failed("the disk is on fire");
    EXPECT_EQ(losses[0].told.get_future().get(), "1: the disk is on fire");
    EXPECT_EQ(losses[2].told.get_future().get(), "1: the disk is on fire");
}

TEST(Meeting, RanksThatAreStartedUnlikeEachOtherAreRefusedOnBothSides) {
    MemoryStore store;
    Loss losses[2];
    auto lead = join(store, 0, 2, losses[0], "block-tokens 16");
    auto other = join(store, 1, 2, losses[1], "block-tokens 32");
    for (auto* joining : {&lead, &other}) {
        const Links met = joining->get();
        ASSERT_FALSE(met);
        EXPECT_EQ(met.error().reason, "RanksDiffer");
        EXPECT_THAT(met.error().message, HasSubstr("rank 1 has block-tokens 32"));
    }
}

TEST(Meeting, RanksThatDoNotComeAreNamed) {
    MemoryStore store;
    Loss losses[2];
    auto lead = join(store, 0, 4, losses[0], "the same", std::chrono::seconds(1));
    auto other = join(store, 2, 4, losses[1]);
    const Links alone = lead.get();
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().reason, "RanksMissing");
    EXPECT_THAT(alone.error().message, HasSubstr("these have not come: 1, 3"));
    EXPECT_FALSE(other.get());
}

TEST(Meeting, TwoProcessesOfOneRankAreRefused) {
    MemoryStore store;
    Loss losses[3];
    auto lead = join(store, 0, 3, losses[0]);
    auto one = join(store, 1, 3, losses[1]);
    auto again = join(store, 1, 3, losses[2]);
    const Links met = lead.get();
    ASSERT_FALSE(met);
    EXPECT_THAT(met.error().message, HasSubstr("two processes of rank 1"));
    EXPECT_FALSE(one.get());
    EXPECT_FALSE(again.get());
}

TEST(Meeting, ARendezvousOfAnEarlierStartIsRefusedInWords) {
    MemoryStore store;
    ASSERT_TRUE(store.set("berth/rank0", "berth-ranks-of-yesterday"));
    Loss loss;
    const Links met = join(store, 1, 2, loss).get();
    ASSERT_FALSE(met);
    EXPECT_THAT(met.error().message, HasSubstr("give a new one"));
}

TEST(Notes, AStepsItemsComeBackAsTheyWere) {
    const std::vector<int32_t> tokens{5, 6, 7}, one{9};
    const std::vector<uint32_t> blocks{3, 1};
    StepItem prefill, decode;
    prefill.tokens = tokens;
    prefill.position = 16;
    prefill.blocks = blocks;
    prefill.rope_length = 19;
    decode.tokens = one;
    decode.position = 4;
    decode.blocks = std::span(blocks).first(1);
    decode.decode = decode.samples = true;
    const std::vector<StepItem> items{decode, prefill};
    std::vector<uint32_t> words = plan_words(items);
    const auto plan = plan_from(words);
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->items.size(), 2U);
    EXPECT_TRUE(plan->items[0].decode && plan->items[0].samples);
    EXPECT_FALSE(plan->items[1].decode || plan->items[1].samples);
    EXPECT_EQ(plan->items[1].position, 16U);
    EXPECT_EQ(plan->items[1].rope_length, 19U);
    EXPECT_THAT(plan->items[1].tokens, ElementsAre(5, 6, 7));
    EXPECT_THAT(plan->items[1].blocks, ElementsAre(3U, 1U));
    words.pop_back();
    EXPECT_FALSE(plan_from(words));
}

} // namespace
} // namespace berth::engine
