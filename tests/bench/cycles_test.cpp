// SPDX-License-Identifier: Apache-2.0
// Goal: `berth bench cycles` does what it says in the proportions that it says, and every kind of
// wrong answer is found. Method: plans of many sizes; files as an engine writes them, each with one
// fault.
#include "scheduler/cli/bench/cycles/answers.h"
#include "scheduler/cli/bench/cycles/plan.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace berth::cli::bench {
namespace {

using ::testing::HasSubstr;

TEST(CyclesPlan, HasItsPartsOfEachKindAndTheSameForASeed) {
    const std::vector<Cycle> cycles = plan_cycles(1000, 7, 60);
    std::map<CycleKind, size_t> counts;
    for (const Cycle& one : cycles) {
        ++counts[one.kind];
        EXPECT_GE(one.part, 0.5);
        EXPECT_LT(one.part, 1.0);
    }
    EXPECT_EQ(counts[CycleKind::kPause], 800U);
    EXPECT_EQ(counts[CycleKind::kShrink], 120U);
    EXPECT_EQ(counts[CycleKind::kOffload], 60U);
    EXPECT_EQ(counts[CycleKind::kEvict], 20U);
    const auto kinds = [](const std::vector<Cycle>& of) {
        std::vector<CycleKind> all;
        for (const Cycle& one : of)
            all.push_back(one.kind);
        return all;
    };
    EXPECT_EQ(kinds(plan_cycles(1000, 7, 60)), kinds(cycles));
    EXPECT_NE(kinds(plan_cycles(1000, 8, 60)), kinds(cycles));
    EXPECT_EQ(plan_cycles(1, 1, 60).size(), 1U);
}

TEST(CyclesPlan, HasEachFaultOnceAmongTheCycles) {
    for (const size_t count : {6U, 40U, 1000U}) {
        std::set<FaultKind> kinds;
        for (size_t n = 0; n < count; ++n)
            if (const FaultKind* fault = fault_before(n, count))
                EXPECT_TRUE(kinds.insert(*fault).second);
        EXPECT_EQ(kinds.size(), kFaultKinds) << count;
    }
}

class CyclesLines : public ::testing::Test {
  protected:
    CyclesLines() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "berth-cycles-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    ~CyclesLines() override { std::filesystem::remove_all(folder_); }
    static std::string line(uint64_t number, const std::string& text, int status = 200) {
        json::object body{{"choices", json::array{json::object{{"text", text}}}}};
        if (status != 200)
            body = {{"error", json::object{{"message", "no room"}}}};
        return json::serialize(
                   json::object{{"custom_id", "l" + std::to_string(number)},
                                {"response", json::object{{"status_code", status},
                                                          {"body", std::move(body)}}}}) +
               "\n";
    }
    Result<LinesCheck> check(const std::string& text, uint64_t whole = 0) {
        std::ofstream(folder_ + "/out.jsonl", std::ios::binary) << text;
        return check_lines(folder_ + "/out.jsonl", {"even", "odd"}, whole);
    }
    std::string folder_;
};

TEST_F(CyclesLines, ThatAreRightAreCountedInAnyOrderAndAHalfLineIsLeftOut) {
    const auto found = check(line(1, "odd") + line(0, "even") + line(2, "even") + "{\"custom_i", 3);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->answered, 3U);
    EXPECT_EQ(found->highest, 2U);
    EXPECT_EQ(found->twice + found->failed + found->different + found->lost, 0U);
    EXPECT_EQ(found->first_wrong, "");
}

TEST_F(CyclesLines, ThatAreTwiceOtherFailedOrLostAreFoundByTheirNumbers) {
    const auto twice = check(line(0, "even") + line(0, "even"));
    EXPECT_EQ(twice->twice, 1U);
    EXPECT_EQ(twice->answered, 1U);
    EXPECT_EQ(twice->first_wrong, "line 0 is answered twice");
    const auto other = check(line(0, "even") + line(1, "even"));
    EXPECT_EQ(other->different, 1U);
    EXPECT_THAT(other->first_wrong, HasSubstr("line 1 is answered 'even', undisturbed 'odd'"));
    const auto failed = check(line(0, "", 500));
    EXPECT_EQ(failed->failed, 1U);
    EXPECT_THAT(failed->first_wrong, HasSubstr("no room"));
    const auto lost = check(line(0, "even") + line(3, "odd"), 4);
    EXPECT_EQ(lost->lost, 2U);
    EXPECT_EQ(lost->first_wrong, "line 1 has no answer");
}

TEST_F(CyclesLines, WhatIsNoAnswerIsRefusedWithItsPlace) {
    const auto found = check(line(0, "even") + "[]\n");
    ASSERT_FALSE(found);
    EXPECT_THAT(found.error().message, HasSubstr("out.jsonl:2: "));
}

TEST_F(CyclesLines, AreWrittenAsAnEngineReadsThem) {
    CyclesOptions options;
    options.prompts = 3;
    const std::vector<std::string> prompts = make_prompts(options);
    ASSERT_EQ(prompts.size(), 3U);
    ASSERT_TRUE(write_lines(folder_ + "/in.jsonl", prompts, 16, 5));
    std::ifstream file(folder_ + "/in.jsonl");
    std::string text;
    size_t n = 0;
    for (; std::getline(file, text); ++n) {
        const auto parsed = json::parse(text, "in.jsonl");
        ASSERT_TRUE(parsed) << parsed.error().message;
        EXPECT_EQ(parsed->at("custom_id").as_string(), "l" + std::to_string(n));
        EXPECT_EQ(parsed->at("body").at("prompt").as_string(), prompts[n % 3]);
        EXPECT_EQ(parsed->at("body").at("max_tokens").to_number<int>(), 16);
    }
    EXPECT_EQ(n, 5U);
}

} // namespace
} // namespace berth::cli::bench
