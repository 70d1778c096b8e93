// SPDX-License-Identifier: Apache-2.0
// Goal: the figures of `berth bench colocate` follow from what was measured. Method: values whose
// percentiles, intervals and shares are known; pages read as XML.
#include "scheduler/cli/bench/colocate/batch_work.h"
#include "scheduler/cli/bench/colocate/dice.h"
#include "scheduler/cli/bench/colocate/phase_result.h"
#include "scheduler/cli/bench/colocate/plots.h"
#include "scheduler/cli/bench/colocate/statistics.h"
#include "scheduler/cli/bench/colocate/svg.h"
#include "scheduler/cli/bench/own_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

namespace berth::cli::bench {
namespace {

using testing::HasSubstr;

Samples one_each(const std::vector<double>& values) {
    Samples samples;
    for (const double value : values)
        samples.push_back({value});
    return samples;
}

TEST(QuantileRatios, OfTheSameFactorEverywhereAreThatFactorWithoutSpread) {
    std::vector<double> alone, beside;
    Dice dice(1);
    for (int n = 0; n < 300; ++n) {
        alone.push_back(10 + 90 * dice.uniform());
        beside.push_back(1.25 * alone.back());
    }
    for (const Ratio& ratio :
         quantile_ratios(one_each(beside), one_each(alone), {50, 90, 99}, 500, 1)) {
        EXPECT_NEAR(ratio.value, 1.25, 1e-12);
        EXPECT_NEAR(ratio.low, 1.25, 1e-12) << "the same requests are drawn on both sides";
        EXPECT_NEAR(ratio.high, 1.25, 1e-12);
    }
}

TEST(QuantileRatios, HoldTheTrueRatioInAboutAllTheirIntervals) {
    // Independent noise on both sides: the true ratio of medians is 1.
    int held = 0;
    for (uint64_t round = 0; round < 200; ++round) {
        Dice dice(100 + round);
        std::vector<double> alone, beside;
        for (int n = 0; n < 100; ++n) {
            alone.push_back(10 + dice.uniform());
            beside.push_back(10 + dice.uniform());
        }
        const Ratio ratio =
            quantile_ratios(one_each(beside), one_each(alone), {50}, 300, round).front();
        held += ratio.low <= 1 && 1 <= ratio.high ? 1 : 0;
    }
    EXPECT_GE(held, 180);
    EXPECT_LT(held, 200) << "an interval that always holds is too wide";
}

TEST(QuantileRatios, PairByNumberAndLeaveOutWhatOneSideLacks) {
    const Samples these{{2, 2}, {}, {400}, {2}};
    const Samples those{{1, 1}, {9}, {}, {1}};
    const Ratio ratio = quantile_ratios(these, those, {99}, 100, 1).front();
    EXPECT_DOUBLE_EQ(ratio.value, 2);
    EXPECT_DOUBLE_EQ(ratio.high, 2);
    EXPECT_DOUBLE_EQ(quantile_ratios({{}}, {{1}}, {99}, 100, 1).front().value, 0);
}

TEST(PartOf, IsWilsonsInterval) {
    // 10 of 20, and none of 10, as E. B. Wilson's formula gives them by hand.
    const Ratio half = part_of(10, 20);
    EXPECT_DOUBLE_EQ(half.value, 0.5);
    EXPECT_NEAR(half.low, 0.2993, 1e-4);
    EXPECT_NEAR(half.high, 0.7007, 1e-4);
    const Ratio none = part_of(0, 10);
    EXPECT_DOUBLE_EQ(none.low, 0);
    EXPECT_NEAR(none.high, 0.2775, 1e-4);
    EXPECT_NEAR(part_of(298, 300).low, 0.976, 1e-3);
    EXPECT_DOUBLE_EQ(part_of(0, 0).high, 0);
}

// Of 200 intervals of two series of `seconds` values whose neighbours are alike.
int intervals_that_hold(int seconds) {
    int held = 0;
    for (uint64_t round = 0; round < 200; ++round) {
        Dice dice(500 + round);
        const auto series = [&dice, seconds] {
            std::vector<double> values;
            double drift = 0;
            for (int n = 0; n < seconds; ++n) {
                drift = 0.5 * drift + dice.uniform() - 0.5;
                values.push_back(10 + drift);
            }
            return values;
        };
        const std::vector<double> these = series(), those = series();
        const Ratio ratio = mean_ratio(these, those, 300, round);
        held += ratio.low <= 1 && 1 <= ratio.high ? 1 : 0;
    }
    return held;
}

TEST(MeanRatio, HoldsTheTrueOneInAboutAllItsIntervalsThoughNeighboursAreAlike) {
    EXPECT_GE(intervals_that_hold(60), 160);
    EXPECT_LT(intervals_that_hold(60), 200) << "an interval that always holds is too wide";
}

TEST(MeanRatio, OfFewValuesHoldsItInMostOfThem) {
    EXPECT_GE(intervals_that_hold(8), 130);
    EXPECT_GE(intervals_that_hold(20), 150);
}

TEST(QuantileRanks, AreThoseOfTheBinomialDistribution) {
    // Of 100 samples the median lies between the 40th and the 61st with 95 % confidence (the
    // distribution's tables).
    EXPECT_EQ(quantile_ranks(100, 50), std::make_pair(size_t{40}, size_t{61}));
    const auto [low, high] = quantile_ranks(300, 99);
    EXPECT_EQ(high, 300U);
    EXPECT_GE(low, 292U);
    EXPECT_LE(low, 294U);
    EXPECT_EQ(quantile_ranks(0, 99), std::make_pair(size_t{0}, size_t{0}));
    EXPECT_EQ(quantile_ranks(1, 99), std::make_pair(size_t{1}, size_t{1}));
}

Answer answer(double due, std::vector<double> events, uint64_t tokens, const char* text = "a") {
    Answer made;
    made.due_s = made.sent_s = due;
    made.event_s = std::move(events);
    made.full_s = made.event_s;
    made.end_s = made.event_s.empty() ? due : made.event_s.back();
    made.tokens = tokens;
    made.status = 200;
    made.done = true;
    made.text = text;
    return made;
}

PhaseResult phase(const char* name, std::vector<Answer> answers, double window_s) {
    PhaseResult result;
    result.plan.name = name;
    result.window_s = window_s;
    result.outcome.answers = std::move(answers);
    return result;
}

TEST(LatenciesOfAPhase, CountFromTheMomentARequestWasDue) {
    Answer late = answer(1.0, {1.5, 1.6, 1.9}, 5);
    late.sent_s = 1.4;
    const Latencies all = latencies_of(phase("p", {late, answer(2, {2.25}, 1), Answer{}}, 10));
    EXPECT_NEAR(all.ttft[0].front(), 500, 1e-9);
    EXPECT_NEAR(all.tpot[0].front(), 100, 1e-9) << "400 ms for four further tokens";
    EXPECT_EQ(all.gap[0].size(), 2U);
    EXPECT_NEAR(all.gap[0][1], 300, 1e-9);
    EXPECT_TRUE(all.tpot[1].empty()) << "one token has none after it";
    EXPECT_TRUE(all.ttft[2].empty()) << "not answered";
}

TEST(BusyPart, CountsTimesThatOverlapOnceAndNothingBehindTheWindow) {
    const PhaseResult result =
        phase("p", {answer(1, {3}, 1), answer(2, {4}, 1), answer(9, {12}, 1)}, 10);
    EXPECT_NEAR(busy_part(result), 0.4, 1e-12);
}

TEST(BatchRateOfAPhase, LiesBetweenTheFirstAndTheLastLookWithinTheWindow) {
    PhaseResult result = phase("p", {}, 2);
    EXPECT_FALSE(batch_rate(result));
    result.outcome.batch = {
        {0.5, {100, 10, 1, 0, 0}}, {1.5, {400, 30, 4, 1, 0}}, {2.5, {9000, 0, 0, 0, 0}}};
    const auto rate = batch_rate(result);
    ASSERT_TRUE(rate);
    EXPECT_DOUBLE_EQ(rate->tokens_per_s, 300);
    EXPECT_DOUBLE_EQ(rate->prefilled_per_s, 20);
    EXPECT_EQ(rate->gate_pauses, 3U);
}

struct Beside {
    PhaseResult alone = phase("online-alone", {}, 10);
    PhaseResult batch = phase("batch-alone", {}, 10);
    PhaseResult gate = phase("gate", {}, 10);
    Baseline baseline;

    Beside() {
        for (int n = 0; n < 10; ++n) {
            alone.outcome.answers.push_back(answer(n, {n + 0.2, n + 0.5}, 4));
            gate.outcome.answers.push_back(answer(n, {n + 0.3, n + 0.7}, 4, n == 3 ? "b" : "a"));
        }
        for (uint64_t n = 0; n <= 20; ++n) {
            const double at = static_cast<double>(n) / 2;
            batch.outcome.batch.push_back({at, {n * 500, 0, 0, 0, 0}});
            // 600 a second for five, then 300
            gate.outcome.batch.push_back(
                {at, {n <= 10 ? n * 300 : 1500 + n * 150, 0, n == 20 ? 7U : 0U, 0, 0}});
        }
        baseline = {&alone, &batch, {250, 140}};
    }
};

TEST(PhaseJson, SaysRatiosSharesTargetsAndMismatches) {
    const Beside beside;
    const json::object line = phase_json(beside.gate, beside.baseline, {200, 1});
    const json::value shown(line);
    EXPECT_NEAR(shown.at_pointer("/ttftMs/p99").as_double(), 300, 1e-6);
    EXPECT_NEAR(shown.at_pointer("/ttftMs/besideAlone/p99/ratio").as_double(), 1.5, 1e-6);
    EXPECT_NEAR(shown.at_pointer("/tpotMs/besideAlone/p50/ratio").as_double(), 4.0 / 3, 1e-6);
    EXPECT_EQ(shown.at_pointer("/online/mismatches"), 1);
    EXPECT_NEAR(shown.at_pointer("/batch/ofAlone").as_double(), 0.45, 1e-9);
    EXPECT_NEAR(shown.at_pointer("/batch/ofIdleTimesWorth").as_double(), 0.9, 1e-9)
        << "alone, half of the time was idle";
    for (const char* of : {"tokensPerSecond", "ofAlone", "ofIdleTimesWorth"}) {
        const std::string at = std::string("/batch/") + of;
        const double value = shown.at_pointer(at).as_double();
        EXPECT_LT(shown.at_pointer(at + "Interval/low").as_double(), value) << of;
        EXPECT_GT(shown.at_pointer(at + "Interval/high").as_double(), value) << of;
        EXPECT_LT(shown.at_pointer(at + "Interval/high").as_double(), value * 1.4) << of;
    }
    EXPECT_EQ(shown.at_pointer("/batch/gatePauses"), 7U);
    EXPECT_EQ(shown.at("aloneOnSameNode"), true);
    EXPECT_LT(shown.at_pointer("/slo/attainedInterval/high").as_double(), 0.4);
    EXPECT_DOUBLE_EQ(shown.at_pointer("/slo/attained").as_double(), 0) << "300 is more than 250";
}

TEST(PhaseJson, SaysWhereItsEnginesAreNotThoseOfAloneAndWhatWasPreempted) {
    Beside beside;
    beside.gate.node = 2;
    beside.gate.preempted = {3, 4096, 512, 256};
    const json::value shown(phase_json(beside.gate, beside.baseline, {200, 1}));
    EXPECT_EQ(shown.at("node"), 2U);
    EXPECT_EQ(shown.at("aloneOnSameNode"), false);
    EXPECT_EQ(shown.at_pointer("/preempted/count"), 3U);
    EXPECT_EQ(shown.at_pointer("/preempted/bytesMoved"), 256U);
}

TEST(PhaseJson, ARateOfFewSecondsHasNoInterval) {
    Beside beside;
    beside.gate.outcome.batch.resize(15);
    const json::value shown(phase_json(beside.gate, beside.baseline, {200, 1}));
    EXPECT_GT(shown.at_pointer("/batch/tokensPerSecond").as_double(), 0);
    EXPECT_TRUE(shown.at_pointer("/batch/tokensPerSecondInterval").is_null());
    EXPECT_TRUE(shown.at_pointer("/batch/ofAloneInterval").is_null());
}

TEST(PhaseJson, OfOnlineAloneHasNothingToBeComparedWith) {
    const Beside beside;
    const json::value shown(phase_json(beside.alone, beside.baseline, {200, 1}));
    EXPECT_TRUE(shown.at_pointer("/ttftMs/besideAlone").is_null());
    EXPECT_DOUBLE_EQ(shown.at_pointer("/slo/attained").as_double(), 1);
}

TEST(PhaseJson, ASkippedPhaseSaysWhyAndNothingElse) {
    PhaseResult skipped = phase("mps", {}, 0);
    skipped.skipped = "still to come";
    const json::object line = phase_json(skipped, {}, {200, 1});
    EXPECT_EQ(line.size(), 3U);
    EXPECT_EQ(line.at("skipped"), "still to come");
}

class Files : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "berth-colocate-XXXXXX").string();
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string folder_;
};
using BatchWork = Files;

TEST_F(BatchWork, AGeneratedFileAsksTheSamePromptsAgainAndAgain) {
    const std::string file = folder_ + "/in.jsonl";
    ASSERT_TRUE(write_batch(file, kBatchPrompts + 1, 1));
    std::ifstream input(file);
    std::vector<json::object> lines;
    for (std::string line; std::getline(input, line);)
        lines.push_back(json::parse(line, "a line").value().as_object());
    ASSERT_EQ(lines.size(), kBatchPrompts + 1);
    EXPECT_EQ(lines.front().at("body"), lines.back().at("body"));
    EXPECT_NE(lines[0].at("body"), lines[1].at("body"));
    EXPECT_NE(lines.front().at("custom_id"), lines.back().at("custom_id"));
}

std::string batch_line(const std::string& id, int status, const std::string& text) {
    return json::serialize(json::object{
               {"custom_id", id},
               {"response",
                json::object{{"status_code", status},
                             {"body", json::object{{"choices", json::array{json::object{
                                                                   {"text", text}}}}}}}}}) +
           "\n";
}

TEST_F(BatchWork, AnswersThatAreDoubleFailedOrDifferentAreCountedAndAHalfLineIsNot) {
    const std::string file = folder_ + "/out.jsonl";
    ASSERT_TRUE(write_text(file, batch_line("l0", 200, "a") + batch_line("l500", 200, "a") +
                                     batch_line("l1000", 200, "b") + batch_line("l1", 200, "b") +
                                     batch_line("l1", 200, "b") + batch_line("l2", 500, "") +
                                     R"({"custom_id": "l3", "resp)"));
    const auto found = check_batch(file);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->lines, 6U);
    EXPECT_EQ(found->twice, 1U);
    EXPECT_EQ(found->failed, 1U);
    EXPECT_EQ(found->different, 1U);
}

// Each tag is closed in turn, each attribute quoted, and no character stands for itself that must
// not.
void expect_well_formed(const std::string& page) {
    std::vector<std::string> open;
    for (size_t at = 0; (at = page.find('<', at)) != std::string::npos;) {
        const size_t end = page.find('>', at);
        ASSERT_NE(end, std::string::npos);
        const std::string tag = page.substr(at + 1, end - at - 1);
        ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
        ASSERT_EQ(std::ranges::count(tag, '"') % 2, 0) << tag;
        const std::string name = tag.substr(tag.starts_with('/') ? 1 : 0);
        if (tag.starts_with('/')) {
            ASSERT_FALSE(open.empty());
            ASSERT_EQ(open.back(), name);
            open.pop_back();
        } else if (!tag.ends_with('/') && !tag.starts_with('?')) {
            open.push_back(tag.substr(0, tag.find(' ')));
        }
        at = end;
    }
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(page.find("nan"), std::string::npos);
    EXPECT_EQ(page.find("inf"), std::string::npos);
}

TEST(Svg, PagesAreWellFormedWhateverTheyShow) {
    const Beside beside;
    expect_well_formed(latency_page({beside.alone, beside.gate}));
    expect_well_formed(timeline_page(beside.gate));
    expect_well_formed(timeline_page(phase("empty", {}, 0)));
    expect_well_formed(svg_page({}));
    Chart chart;
    chart.title = "<a> & \"b\"";
    chart.x_is_logarithmic = true;
    chart.lines = {{"one", {{0, 1}, {5, 2}}, true, true}, {"none", {}, false, false}};
    const std::string page = svg_page({chart});
    expect_well_formed(page);
    EXPECT_THAT(page, HasSubstr("&lt;a&gt; &amp; &quot;b&quot;"));
}

TEST(Svg, LatenciesThatAreMostlyZeroAreDrawnOnALogarithmicAxis) {
    PhaseResult result = phase("p", {}, 10);
    for (int n = 0; n < 20; ++n)
        result.outcome.answers.push_back(answer(n, {n + 0.0, n + 0.0, n + 0.0}, 3));
    expect_well_formed(latency_page({result}));
    result.outcome.answers.push_back(answer(1, {1.1, 1.5}, 2));
    expect_well_formed(latency_page({result}));
}

TEST(Svg, ALineGoesFromThePlacesOfItsFirstValuesToThoseOfItsLast) {
    Chart chart;
    chart.lines = {{"line", {{0, 0}, {10, 4}}, false, false}};
    // The plot's frame: 64 to 670 and 36 to 292.
    EXPECT_THAT(svg_page({chart}), HasSubstr("d=\"M64.0 292.0L670.0 36.0\""));
}

} // namespace
} // namespace berth::cli::bench
