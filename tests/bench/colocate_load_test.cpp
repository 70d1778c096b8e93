// SPDX-License-Identifier: Apache-2.0
// Goal: the requests of `berth bench colocate` are what they are said to be. Method: traces as
// text, moments of what is drawn, and busy shares of loads that can be added up by hand.
#include "scheduler/cli/bench/colocate/arrivals.h"
#include "scheduler/cli/bench/colocate/dice.h"
#include "scheduler/cli/bench/colocate/pace.h"
#include "scheduler/cli/bench/colocate/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace berth::cli::bench {
namespace {

using testing::HasSubstr;

constexpr const char* kExcerpt = BERTH_TRACES "/azure-llm-2023-conv-500.csv";
constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

std::string trace(const std::string& rows) {
    return std::string(kHeader) + rows;
}

TEST(Trace, RowsAreReadWithTimesSinceTheFirstWhateverTheLineEnds) {
    const auto rows = parse_trace(trace("2023-11-16 23:59:58.5000000,374,44\r\n"
                                        "2023-11-17 00:00:01,396,109\r\n\r\n"
                                        "2023-11-17 00:00:01.25,1,2"),
                                  "t.csv", 0, 3);
    ASSERT_TRUE(rows) << rows.error().message;
    EXPECT_DOUBLE_EQ((*rows)[0].at_s, 0);
    EXPECT_DOUBLE_EQ((*rows)[1].at_s, 2.5);
    EXPECT_DOUBLE_EQ((*rows)[2].at_s, 2.75);
    EXPECT_EQ((*rows)[1].prompt_tokens, 396U);
    EXPECT_EQ((*rows)[1].tokens, 109U);
}

TEST(Trace, ReadingBeginsAtTheWantedRowAndEndsAfterTheWantedCount) {
    const auto rows = parse_trace(trace("2023-11-16 18:00:00,1,1\n2023-11-16 18:00:05,2,1\n"
                                        "2023-11-16 18:00:07,3,1\nnonsense that is not reached"),
                                  "t.csv", 1, 2);
    ASSERT_TRUE(rows) << rows.error().message;
    EXPECT_EQ((*rows)[0].prompt_tokens, 2U);
    EXPECT_DOUBLE_EQ((*rows)[1].at_s, 2);
}

struct WrongTrace {
    const char* name;
    std::string text;
    const char* place;
    const char* words;
};
class WrongTraces : public testing::TestWithParam<WrongTrace> {};

TEST_P(WrongTraces, AreRefusedWithFileAndLine) {
    const auto rows = parse_trace(GetParam().text, "t.csv", 0, 2);
    ASSERT_FALSE(rows);
    EXPECT_THAT(rows.error().message, testing::StartsWith(GetParam().place));
    EXPECT_THAT(rows.error().message, HasSubstr(GetParam().words));
}

INSTANTIATE_TEST_SUITE_P(
    Each, WrongTraces,
    testing::Values(
        WrongTrace{"Empty", "", "t.csv:1:", "header"},
        WrongTrace{"Header", "Time,In,Out\n", "t.csv:1:", "'Time,In,Out'"},
        WrongTrace{"Fields", trace("2023-11-16 18:00:00,1\n"), "t.csv:2:", "three fields"},
        WrongTrace{"TooManyFields", trace("2023-11-16 18:00:00,1,2,3\n"),
                   "t.csv:2:", "three fields"},
        WrongTrace{"Time", trace("2023-11-16 18:00:00,1,1\n2023-11-16T18:00:00,1,1\n"),
                   "t.csv:3:", "2023-11-16T18:00:00"},
        WrongTrace{"Day", trace("2023-02-30 18:00:00,1,1\n"), "t.csv:2:", "2023-02-30"},
        WrongTrace{"Hour", trace("2023-02-03 24:00:00,1,1\n"), "t.csv:2:", "24:00"},
        WrongTrace{"Count", trace("2023-11-16 18:00:00,many,1\n"), "t.csv:2:", "'many'"},
        WrongTrace{"Negative", trace("2023-11-16 18:00:00,1,-1\n"), "t.csv:2:", "'-1'"},
        WrongTrace{"Order", trace("2023-11-16 18:00:01,1,1\n2023-11-16 18:00:00,1,1\n"),
                   "t.csv:3:", "before"},
        WrongTrace{"Short", trace("2023-11-16 18:00:01,1,1\n"), "t.csv:2:", "--requests"}),
    [](const auto& one) { return one.param.name; });

TEST(Trace, TheExcerptInTheTreeIsReadWhole) {
    const auto rows = read_trace(kExcerpt, 0, 500);
    ASSERT_TRUE(rows) << rows.error().message;
    EXPECT_NEAR(rows->back().at_s, 129.012, 0.001);
    EXPECT_EQ(rows->front().prompt_tokens, 374U);
}

struct Moments {
    double mean = 0, variance = 0;
};
Moments moments(size_t count, const std::function<double()>& draw) {
    double sum = 0, squares = 0;
    for (size_t n = 0; n < count; ++n) {
        const double value = draw();
        sum += value;
        squares += value * value;
    }
    const double mean = sum / static_cast<double>(count);
    return {mean, squares / static_cast<double>(count) - mean * mean};
}

TEST(DiceOfTheBench, HaveTheMomentsOfTheirDistributions) {
    Dice dice(7);
    const Moments normal = moments(200'000, [&] { return dice.normal(); });
    EXPECT_NEAR(normal.mean, 0, 0.01);
    EXPECT_NEAR(normal.variance, 1, 0.02);
    const Moments exponential = moments(200'000, [&] { return dice.exponential(); });
    EXPECT_NEAR(exponential.mean, 1, 0.01);
    EXPECT_NEAR(exponential.variance, 1, 0.03);
    for (const double shape : {0.25, 0.5, 1.0, 4.0}) {
        const Moments gamma = moments(400'000, [&] { return dice.gamma(shape); });
        EXPECT_NEAR(gamma.mean, 1, 0.02) << shape;
        EXPECT_NEAR(gamma.variance * shape, 1, 0.05) << shape;
    }
}

ColocateOptions drawn(const char* arrivals, uint64_t seed) {
    ColocateOptions options;
    options.arrivals = arrivals;
    options.seed = seed;
    options.requests = 20'000;
    return options;
}

// Of the gaps between arrivals: their deviation as a part of their mean.
double variation(const Arrivals& arrivals) {
    size_t next = 0;
    const Moments gaps = moments(arrivals.size() - 1, [&] {
        ++next;
        return arrivals[next].due_s - arrivals[next - 1].due_s;
    });
    return std::sqrt(gaps.variance) / gaps.mean;
}

TEST(ArrivalsOfTheBench, ArePoissonOrComeInBurstsAsTheirProcessSays) {
    const auto poisson = unscaled_arrivals(drawn("poisson", 3));
    const auto bursts = unscaled_arrivals(drawn("gamma:0.25", 3));
    ASSERT_TRUE(poisson && bursts);
    EXPECT_NEAR(variation(*poisson), 1, 0.03);
    EXPECT_NEAR(variation(*bursts), 2, 0.1);
    EXPECT_NEAR(poisson->back().due_s, 19'999, 1e-6) << "a second each, on average";
}

TEST(ArrivalsOfTheBench, AreTheSameForASeedAndOthersForAnother) {
    const auto one = unscaled_arrivals(drawn("gamma", 3));
    const auto same = unscaled_arrivals(drawn("gamma", 3));
    const auto other = unscaled_arrivals(drawn("gamma", 4));
    ASSERT_TRUE(one && same && other);
    size_t different = 0;
    for (size_t n = 0; n < one->size(); ++n) {
        ASSERT_EQ((*one)[n].due_s, (*same)[n].due_s);
        ASSERT_EQ((*one)[n].tokens, (*same)[n].tokens);
        different += (*one)[n].prompt_tokens != (*other)[n].prompt_tokens ? 1 : 0;
    }
    EXPECT_GT(different, one->size() / 2);
}

TEST(ArrivalsOfTheBench, OfATraceWithAProcessHaveItsLengthsAtOtherTimes) {
    ColocateOptions options;
    options.requests = 100;
    options.trace = kExcerpt;
    const auto as_it_is = unscaled_arrivals(options);
    options.arrivals = "poisson";
    const auto poisson = unscaled_arrivals(options);
    ASSERT_TRUE(as_it_is && poisson);
    for (size_t n = 0; n < 100; ++n)
        ASSERT_EQ((*as_it_is)[n].tokens, (*poisson)[n].tokens);
    EXPECT_NE((*as_it_is)[50].due_s, (*poisson)[50].due_s);
}

TEST(ArrivalsOfTheBench, UnknownProcessesAreRefused) {
    for (const char* words : {"uniform", "gamma:", "gamma:0", "gamma:x", "trace"})
        EXPECT_FALSE(arrival_process(words, false)) << words;
}

Arrivals evenly(size_t count, uint32_t prompt, uint32_t tokens) {
    Arrivals arrivals;
    for (size_t n = 0; n < count; ++n)
        arrivals.push_back({static_cast<double>(n), prompt, tokens});
    return arrivals;
}

TEST(Scaling, PutsAllIntoTheWindowAndMultipliesLengths) {
    const Scaled load = scaled(evenly(10, 100, 40), {20, 0.5, 0}, 4096);
    EXPECT_DOUBLE_EQ(load.arrivals.front().due_s, 1);
    EXPECT_DOUBLE_EQ(load.arrivals.back().due_s, 19);
    EXPECT_EQ(load.arrivals[5].prompt_tokens, 50U);
    EXPECT_EQ(load.arrivals[5].tokens, 20U);
    EXPECT_EQ(load.clipped, 0U);
    EXPECT_EQ(scaled(evenly(2, 100, 40), {20, 0.5, 2}, 4096).arrivals[0].prompt_tokens, 200U);
}

TEST(Scaling, NeverExceedsTheContextAndSaysHowOftenItClipped) {
    Arrivals arrivals = evenly(2, 90, 20);
    arrivals.push_back({2, 1, 500});
    const Scaled load = scaled(arrivals, {3, 1, 0}, 100);
    EXPECT_EQ(load.clipped, 3U);
    for (const Arrival& one : load.arrivals) {
        EXPECT_LE(one.prompt_tokens + one.tokens, 100U);
        EXPECT_GE(one.prompt_tokens, 1U);
        EXPECT_GE(one.tokens, 1U);
    }
    const Scaled tiny = scaled(evenly(1, 3, 3), {1, 0.001, 0}, 100);
    EXPECT_EQ(tiny.arrivals[0].prompt_tokens, 1U);
    EXPECT_EQ(tiny.arrivals[0].tokens, 2U);
}

// A prompt takes 10 ms and 0.1 ms a token, a step 5 ms and 1 ms for each further row.
constexpr EnginePace kPace{0.010, 0.0001, 0.005, 0.001, 2};

TEST(BusyShare, IsTheSumOfWhatEachTakesWhileTheyDoNotMeet) {
    // 10 + 100 * 0.1 = 20 ms, and 4 further tokens at 5 ms.
    EXPECT_NEAR(busy_share(scaled(evenly(10, 100, 5), {10, 1, 0}, 4096), kPace), 0.040, 1e-9);
}

TEST(BusyShare, OfSequencesThatMeetCountsSharedStepsOnceAndRowsBeyondTheMostWait) {
    Arrivals together = evenly(3, 100, 3);
    for (Arrival& one : together)
        one.due_s = 0;
    // Two prompts of 20 ms; two steps for both at 6 ms; the third prompt; two steps at 5 ms.
    const Scaled load = scaled(together, {3, 1, 0}, 4096);
    EXPECT_NEAR(busy_share(load, kPace) * 3, 0.040 + 0.012 + 0.020 + 0.010, 1e-9);
}

TEST(BusyShare, CountsNothingBehindTheWindow) {
    const Scaled load = scaled(evenly(2, 1000, 50), {0.4, 1, 0}, 4096);
    EXPECT_LE(busy_share(load, kPace), 1.0);
    EXPECT_GT(busy_share(load, kPace), 0.7);
}

TEST(FitBusy, FindsLengthsForTheWindowOrTheWindowForLengths) {
    ColocateOptions options = drawn("poisson", 5);
    options.requests = 400;
    const auto arrivals = unscaled_arrivals(options);
    ASSERT_TRUE(arrivals);
    for (const double wanted : {0.3, 0.5, 0.7}) {
        const Scaled by_length = fit_busy(*arrivals, kPace, wanted, {60, 0, 0}, 40'960);
        EXPECT_NEAR(by_length.predicted_busy, wanted, 0.02);
        EXPECT_DOUBLE_EQ(by_length.window_s, 60);
        const Scaled by_time = fit_busy(*arrivals, kPace, wanted, {0, 0.3, 0}, 40'960);
        EXPECT_NEAR(by_time.predicted_busy, wanted, 0.02);
        EXPECT_DOUBLE_EQ(by_time.token_scale, 0.3);
    }
}

TEST(Phases, AreChosenByNameInTheOrderThatIsGiven) {
    ColocateOptions options;
    options.phases = "online-alone,slo,gate";
    options.share_percent = 12.5;
    const auto chosen = phase_plans(options);
    ASSERT_TRUE(chosen);
    ASSERT_EQ(chosen->size(), 3U);
    EXPECT_EQ((*chosen)[1].share, "SLO");
    EXPECT_EQ((*chosen)[2].share, "0%");
    options.phases = "";
    const auto all = phase_plans(options);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->size(), 9U);
    for (const PhasePlan& phase : *all)
        if (phase.name == "gate-share")
            EXPECT_EQ(phase.share, "12.5%");
}

TEST(Phases, UnknownDoubleAndTargetlessOnesAreRefused) {
    for (const char* phases : {"gates", "gate,gate", "gate,slo", "gate,"}) {
        ColocateOptions options;
        options.phases = phases;
        EXPECT_FALSE(phase_plans(options)) << phases;
    }
}

} // namespace
} // namespace berth::cli::bench
