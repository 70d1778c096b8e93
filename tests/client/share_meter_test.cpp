// SPDX-License-Identifier: Apache-2.0
// Goal: through a closed gate an engine runs for its share of the time, however far apart its looks
// are; and what online can spare follows its latencies. Method: a clock that the test moves.
#include "engine_shim/client/share_meter.h"
#include "engine_shim/client/turn_slack.h"

#include <gtest/gtest.h>

#include <map>

namespace berth {
namespace {

using namespace std::chrono_literals;
using Clock = ShareMeter::Clock;

// The part of ten seconds during which it ran, with looks `step` apart while it runs.
double ran_part(uint32_t thousandths, Nanoseconds step) {
    ShareMeter meter;
    const Clock::time_point start{1h};
    Clock::time_point now = start;
    Nanoseconds ran{0};
    bool runs = meter.runs_on(thousandths, now);
    while (now - start < 10s) {
        if (!runs) {
            const Nanoseconds rest = meter.rest(thousandths, now);
            runs = rest.count() == 0;
            now += std::min<Nanoseconds>(rest, 100ms);
            continue;
        }
        now += step;
        ran += step;
        runs = meter.runs_on(thousandths, now);
    }
    return std::chrono::duration<double>(ran) / std::chrono::duration<double>(now - start);
}

TEST(ShareMeter, RunsForItsPartOfTheTimeWhateverTheDistanceOfLooks) {
    for (const uint32_t thousandths : {50U, 200U, 500U, 900U})
        for (const Nanoseconds step : {Nanoseconds(100us), Nanoseconds(2ms), Nanoseconds(50ms)})
            EXPECT_NEAR(ran_part(thousandths, step), thousandths / 1000.0, 0.02)
                << thousandths << " thousandths, looks every " << step.count() << " ns";
}

TEST(ShareMeter, StopsAtTheFirstLookAfterTheGateHasClosed) {
    ShareMeter meter;
    Clock::time_point now{1h};
    EXPECT_FALSE(meter.runs_on(900, now));
    while (meter.rest(900, now).count() > 0)
        now += 1ms;
    EXPECT_TRUE(meter.runs_on(900, now));
    meter.open();
    EXPECT_FALSE(meter.runs_on(900, now + 1s)) << "what was left over is not carried along";
}

// At whatever moment of its turns the policy takes the share away.
TEST(ShareMeter, AShareThatIsTakenAwayLeavesNothingOfItsLastTurn) {
    for (int looks = 0; looks < 40; ++looks) {
        ShareMeter meter;
        Clock::time_point now{1h};
        bool runs = meter.runs_on(300, now);
        for (int look = 0; look < looks; ++look) {
            now += 1ms;
            runs = runs ? meter.runs_on(300, now) : meter.rest(300, now).count() == 0;
        }
        for (int look = 0; look < 5; ++look) {
            now += 1ms;
            EXPECT_FALSE(meter.runs_on(0, now));
            EXPECT_EQ(meter.rest(0, now), ShareMeter::kNever) << "after " << looks << " looks";
        }
        EXPECT_NEAR(std::chrono::duration<double>(meter.rest(500, now)).count(), 0.008, 1e-6);
    }
}

TEST(ShareMeter, WhatWasLeftOverWhenTheGateOpenedIsNotThereWhenItClosesWhoeverLooks) {
    ShareMeter meter;
    Clock::time_point now{1h};
    EXPECT_FALSE(meter.runs_on(300, now));
    while (meter.rest(300, now).count() > 0)
        now += 1ms;
    meter.open();
    EXPECT_GT(meter.rest(300, now + 1s).count(), 0);
}

TEST(SpareTime, GrowsWithSlackAndHalvesAtOnceWhenATargetIsMissed) {
    SpareTime spare;
    const SpareTime::Targets targets{200ms, 40ms};
    uint32_t last = 0;
    for (int n = 0; n < 100; ++n) {
        const uint32_t now = spare.after(targets, 20ms, 5ms);
        EXPECT_GE(now, last);
        last = now;
    }
    EXPECT_EQ(last, 900U);
    EXPECT_EQ(spare.after(targets, 201ms, 5ms), 450U);
    EXPECT_EQ(spare.after(targets, 20ms, 41ms), 225U);
    EXPECT_LT(spare.after(targets, 20ms, 38ms), 225U) << "close to the target is too much";
}

TEST(SpareTime, OnceItHasComeNearATargetMissesAreFewerThanOneInAHundred) {
    SpareTime spare;
    const SpareTime::Targets targets{0ms, 40ms};
    int misses = 0;
    constexpr int kAnswers = 20'000;
    uint32_t share = 0;
    uint64_t shares = 0;
    for (int n = 0; n < kAnswers; ++n) { // alone a token takes 10 ms, more or less by a tenth
        const double alone = 10 * (0.9 + 0.2 * (n * 7919 % 1000) / 1000.0);
        const auto tpot = std::chrono::duration_cast<Nanoseconds>(
            std::chrono::duration<double, std::milli>(alone / (1 - share / 1000.0)));
        misses += tpot > targets.tpot ? 1 : 0;
        share = spare.after(targets, 0ms, tpot);
        shares += share;
    }
    EXPECT_LT(misses, kAnswers / 100);
    EXPECT_GT(shares / kAnswers, 600U) << "three quarters would just meet the target";
}

// One whose answers take the longer the more of the time others have, near the share at which that
// is too much for its target.
struct NearItsTarget {
    static Nanoseconds pace(uint32_t share) {
        return std::chrono::duration_cast<Nanoseconds>(
            std::chrono::duration<double, std::milli>(10 / (1 - share / 1000.0)));
    }
    uint32_t answer(uint32_t share) { return spare.after(targets, 0ms, pace(share)); }
    // So many answers until it gives 8 tenths of what it gave at first; 1000: more.
    int answers_until_back(uint32_t* share) {
        int answers = 0;
        for (; *share < before * 8 / 10 && answers < 1000; ++answers)
            *share = answer(*share);
        return answers;
    }

    SpareTime spare;
    SpareTime::Targets targets{0ms, 40ms};
    uint32_t before = [this] {
        uint32_t share = 0;
        for (int n = 0; n < 500; ++n)
            share = answer(share);
        return share;
    }();
};

TEST(SpareTime, AnAnswerLateByChanceHalvesItForAShortTimeOnly) {
    NearItsTarget one;
    uint32_t share = one.spare.after(one.targets, 0ms, 41ms);
    EXPECT_EQ(share, one.before / 2) << "at once";
    const int answers = one.answers_until_back(&share);
    EXPECT_LT(answers, 40);
    for (int n = 0; n < 2 * answers; ++n)
        share = one.answer(share);
    EXPECT_LT(share, one.before) << "near to where it was too much it goes on slowly";
}

TEST(SpareTime, AMissThatLastsTakesAllAndDoesNotMakeItForgetWhereTooMuchBegan) {
    NearItsTarget one;
    uint32_t share = one.before;
    for (Clock::time_point now{1h}; now < Clock::time_point(1h + 30s); now += 250ms)
        share = one.spare.under_way(one.targets, 0ms, 50ms, now);
    EXPECT_EQ(share, 0U);
    EXPECT_LT(one.answers_until_back(&share), 60);
}

TEST(SpareTime, AMissIsAnsweredBeforeItsAnswerHasEndedAndOnceForOneCause) {
    SpareTime spare;
    const SpareTime::Targets targets{200ms, 40ms};
    for (int n = 0; n < 100; ++n)
        spare.after(targets, 20ms, 5ms);
    Clock::time_point now{1h};
    EXPECT_EQ(spare.under_way(targets, 199ms, 0ms, now), 900U) << "not yet late";
    EXPECT_EQ(spare.under_way(targets, 0ms, 39ms, now), 900U);
    EXPECT_EQ(spare.under_way(targets, 201ms, 0ms, now), 450U);
    EXPECT_EQ(spare.under_way(targets, 0ms, 41ms, now + 249ms), 450U) << "the same cause";
    EXPECT_EQ(spare.under_way(targets, 260ms, 0ms, now + 250ms), 225U) << "it is still late";
    EXPECT_EQ(spare.under_way(targets, 20ms, 5ms, now + 1s), 225U) << "no answer, no growth";
    const uint32_t told = spare.after_told(targets, 260ms, 41ms);
    EXPECT_LT(told, 225U);
    EXPECT_GT(told, 112U) << "its misses have been answered";
    EXPECT_GT(spare.after_told(targets, 20ms, 5ms), told);
    EXPECT_EQ(spare.under_way({}, 1h, 1h, now + 2s), spare.under_way(targets, 0ms, 0ms, now + 2s))
        << "without targets nothing is late";
}

TEST(SpareTime, ALongAnswerThatIsLateTakesAllFromOthersWithinSeconds) {
    SpareTime spare;
    const SpareTime::Targets targets{0ms, 40ms};
    for (int n = 0; n < 100; ++n)
        spare.after(targets, 0ms, 5ms);
    Clock::time_point now{1h};
    uint32_t share = 900;
    for (int told = 0; told < 12; ++told, now += 250ms)
        share = spare.under_way(targets, 0ms, 60ms, now);
    EXPECT_EQ(share, 0U);
}

TEST(SpareTime, IsNothingWithoutTargets) {
    SpareTime spare;
    EXPECT_EQ(spare.after({}, 1ms, 1ms), 0U);
    for (int n = 0; n < 10; ++n)
        spare.after({200ms, 0ms}, 1ms, 1ms);
    EXPECT_EQ(spare.after({}, 1ms, 1ms), 0U);
}

// What of the time others have who get a turn whenever one is due.
double given_part(uint32_t thousandths, Nanoseconds step) {
    TurnBook book;
    Nanoseconds stepped{0}, given{0};
    for (int n = 0; n < 5000; ++n) {
        stepped += step;
        const Nanoseconds turn = book.after(step, thousandths);
        EXPECT_TRUE(turn.count() == 0 || turn >= TurnBook::kTurn);
        book.given(turn);
        given += turn;
    }
    return static_cast<double>(given.count()) / static_cast<double>((given + stepped).count());
}

TEST(TurnBook, GivesOthersTheirPartOfTheTimeInWholeTurns) {
    for (const uint32_t thousandths : {0U, 50U, 200U, 500U, 700U})
        for (const Nanoseconds step : {Nanoseconds(1ms), Nanoseconds(5ms), Nanoseconds(20ms)})
            EXPECT_NEAR(given_part(thousandths, step), thousandths / 1000.0, 0.01)
                << thousandths << " thousandths, steps of " << step.count() << " ns";
}

TEST(TurnBook, ATurnThatEndedEarlyIsOwedAndOneThatNobodyWantedIsNot) {
    TurnBook book;
    const Nanoseconds turn = book.after(20ms, 500);
    EXPECT_EQ(turn, Nanoseconds(20ms));
    book.given(5ms);
    EXPECT_EQ(book.after(1ms, 500), Nanoseconds(16ms));
    book.nobody_waited();
    EXPECT_EQ(book.after(1ms, 500), Nanoseconds(0));
    EXPECT_EQ(book.after(10s, 500), TurnBook::kTurnMax);
}

TEST(BusyTime, OthersNeedAShareOnlyWhereLittleOfTheTimeIsIdle) {
    for (const auto& [busy_ms, need] :
         std::map<int, double>{{10, 0}, {25, 0}, {37, 0.5}, {50, 1}, {80, 1}}) {
        BusyTime busy;
        BusyTime::Clock::time_point now{1h};
        for (int n = 0; n < 400; ++n) {
            busy.set(true, now);
            now += std::chrono::milliseconds(busy_ms);
            busy.set(false, now);
            now += std::chrono::milliseconds(100 - busy_ms);
        }
        EXPECT_NEAR(busy.need(now), need, 0.06) << busy_ms << " % busy";
    }
}

TEST(TurnSlack, ATurnIsNoLongerThanWhatTheTightestAnswerCanBear) {
    TurnSlack slack;
    EXPECT_GT(slack.after(5ms), 1h) << "nobody is to be spared";
    slack.answer(50ms, 0, 0ms); // 40 ms for its next token, less a step
    EXPECT_EQ(slack.after(5ms), 35ms);
    slack.answer(50ms, 9, 100ms); // of 400 ms, 300 are left
    EXPECT_EQ(slack.after(5ms), 295ms);
    slack.answer(50ms, 9, 100ms);
    slack.answer(50ms, 9, 380ms);
    EXPECT_EQ(slack.after(5ms), 15ms);
    slack.answer(50ms, 9, 394ms);
    EXPECT_EQ(slack.after(5ms), 0ms) << "too short to be worth it";
    slack.answer(50ms, 9, 1s);
    EXPECT_EQ(slack.after(5ms), 0ms) << "it is late, and can make it good";
    slack.answer(50ms, 9, 1h);
    EXPECT_GT(slack.after(5ms), 1h) << "turns have not made it so late, nor would their end help";
    slack.answer(0ms, 9, 1h);
    EXPECT_GT(slack.after(5ms), 1h) << "without a target";
}

TEST(TurnSlack, StepsThatAreToldEachCountAloneAndNotTogether) {
    TurnSlack slack;
    for (int n = 0; n < 10; ++n)
        slack.step(8ms);
    slack.answer(50ms, 0, 0ms);
    EXPECT_EQ(slack.after(80ms), 32ms);
}

TEST(TurnSlack, AStepWithAPromptInItIsAllowedForForAWhile) {
    TurnSlack slack;
    slack.answer(50ms, 0, 0ms);
    EXPECT_EQ(slack.after(20ms), 20ms);
    slack.answer(50ms, 0, 0ms);
    EXPECT_EQ(slack.after(5ms), 21ms) << "it may come again";
    for (int n = 0; n < 60; ++n)
        slack.after(5ms);
    slack.answer(50ms, 0, 0ms);
    EXPECT_EQ(slack.after(5ms), 35ms);
    slack.answer(50ms, 0, 0ms);
    EXPECT_EQ(slack.after(10s), 15ms) << "it takes half of the time for a token at most";
}

// An engine of steps of 5 ms and prompts of 15 ms now and then, with a target of 28 ms: every
// answer keeps it, and others have most of the time.
TEST(TurnSlack, AnswersOfAnyLengthKeepTheirTargetThoughOthersHaveMostOfTheTime) {
    constexpr Nanoseconds kTarget = 28ms, kStep = 5ms, kPrompt = 10ms;
    TurnSlack slack;
    TurnBook book;
    Nanoseconds now{0}, given{0}, began{0};
    uint32_t later = 0, length = 1, kept = 0, answers = 0;
    for (uint32_t n = 1; n < 20'000; ++n) {
        const Nanoseconds step = kStep + (n % 7 == 0 ? kPrompt : Nanoseconds(0));
        now += step;
        if (++later == length) {
            ++answers;
            kept += now - began <= kTarget * later ? 1 : 0;
            length = 1 + n % 40;
            later = 0;
            began = now;
        }
        slack.answer(kTarget, later, now - began);
        const Nanoseconds turn = std::min(book.after(step, 900), slack.after(step));
        book.given(turn);
        given += turn;
        now += turn;
    }
    EXPECT_EQ(kept, answers);
    EXPECT_GT(static_cast<double>(given.count()) / static_cast<double>(now.count()), 0.6);
}

} // namespace
} // namespace berth
