// SPDX-License-Identifier: Apache-2.0
// Goal: how a request fares is told while it does: its first token as it comes, each choice's pace
// every few tokens, who waits; and by the engine's time, whatever the client does. Method: an
// engine that notes what it is told, and a clock that the test moves.
#include "engine_shim/reference/serve/answer_clock.h"
#include "tests/text/fake_engine.h"

#include <gmock/gmock.h>

namespace berth::serve {
namespace {

using namespace std::chrono_literals;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class AnswerClockTest : public ::testing::Test {
  protected:
    std::shared_ptr<AnswerClock> begin(size_t choices, bool had_first = false) {
        return std::make_shared<AnswerClock>(engine_, begun_, choices, had_first);
    }
    AnswerClock::Clock::time_point at(std::chrono::milliseconds after) const {
        return begun_ + after;
    }
    test::FakeEngine engine_{test::FakeEngine::Settings{}};
    const AnswerClock::Clock::time_point begun_{1h};
};

TEST_F(AnswerClockTest, TheFirstTokenIsToldWhenItComes) {
    auto clock = begin(1);
    EXPECT_EQ(engine_.awaited(), 1);
    clock->token(0, false, at(70ms));
    EXPECT_EQ(engine_.awaited(), 0);
    EXPECT_EQ(engine_.firsts(), 1U);
    EXPECT_THAT(engine_.paces(), IsEmpty());
    EXPECT_THAT(engine_.answered(), IsEmpty());
    EXPECT_NEAR(clock->first().value(), 0.07, 1e-9);
}

TEST_F(AnswerClockTest, ThePaceIsToldEverySixteenTokensOrAQuarterOfASecond) {
    auto clock = begin(1);
    auto now = at(100ms);
    clock->token(0, false, now);
    for (int token = 0; token < 16; ++token)
        clock->token(0, false, now += 10ms);
    EXPECT_THAT(engine_.paces(), ElementsAre(DoubleNear(0.01, 1e-9)));
    for (int token = 0; token < 3; ++token) // it has become slow
        clock->token(0, false, now += 100ms);
    EXPECT_THAT(engine_.paces(), ElementsAre(DoubleNear(0.01, 1e-9), DoubleNear(0.1, 1e-9)));
    clock->token(0, true, now + 20ms);
    EXPECT_THAT(engine_.paces(),
                ElementsAre(DoubleNear(0.01, 1e-9), DoubleNear(0.1, 1e-9), DoubleNear(0.02, 1e-9)))
        << "the last ones are told with the end";
    EXPECT_THAT(engine_.answered(), IsEmpty());
    clock->end();
    EXPECT_THAT(engine_.answered(), ElementsAre(DoubleNear((0.16 + 0.3 + 0.02) / 20, 1e-9)));
    clock->end();
    EXPECT_EQ(engine_.answered().size(), 1U);
}

TEST_F(AnswerClockTest, OfSeveralChoicesTheSlowestCounts) {
    auto clock = begin(3);
    clock->token(1, false, at(50ms));
    clock->token(0, false, at(300ms));
    clock->token(1, true, at(60ms));
    clock->token(0, true, at(340ms));
    clock->end();
    EXPECT_EQ(engine_.firsts(), 1U) << "the request's";
    EXPECT_NEAR(clock->first().value(), 0.05, 1e-9);
    EXPECT_THAT(engine_.answered(), ElementsAre(DoubleNear(0.04, 1e-9)));
}

TEST_F(AnswerClockTest, WhoEndsWithoutATokenIsNoLongerAwaited) {
    auto clock = begin(1);
    clock->end();
    EXPECT_EQ(engine_.awaited(), 0);
    clock->token(0, false, at(10ms)); // it was on its way
    EXPECT_EQ(engine_.firsts(), 0U);
    EXPECT_THAT(engine_.answered(), IsEmpty());
    EXPECT_FALSE(clock->first());
}

TEST_F(AnswerClockTest, WhatAnotherEngineBeganHasAPaceAlone) {
    auto clock = begin(1, /*had_first=*/true);
    EXPECT_EQ(engine_.awaited(), 0);
    clock->token(0, false, at(10ms));
    clock->token(0, true, at(30ms));
    clock->end();
    EXPECT_EQ(engine_.firsts(), 0U);
    EXPECT_FALSE(clock->first());
    EXPECT_THAT(engine_.answered(), ElementsAre(DoubleNear(0.02, 1e-9)));
}

TEST_F(AnswerClockTest, EventsAreHandedOnStamped) {
    auto clock = begin(1);
    std::vector<int32_t> handed;
    const auto callback = clock->stamped(
        0, [&handed](const engine::TokenEvent& event) { handed.push_back(event.token); });
    engine::TokenEvent event;
    event.token = 7;
    callback(event);
    event.token = -1;
    event.finished = true;
    callback(event);
    EXPECT_THAT(handed, ElementsAre(7, -1));
    EXPECT_EQ(engine_.firsts(), 1U);
}

} // namespace
} // namespace berth::serve
