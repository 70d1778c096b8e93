// SPDX-License-Identifier: Apache-2.0
// Goal: the simulator finds what it is there to find. Method: scheduler/node is built once more
// with eleven bugs in it (plant.py), of which one at a time is on; each must break a rule within a
// bounded number of seeds, and none may while none is on.
#include "planted.h"

#include "scheduler/simulate/trace.h"

#include <gtest/gtest.h>

#include <iostream>

namespace berth::node {

int planted_bug = 0;

} // namespace berth::node

namespace berth::simulate {

namespace {

constexpr uint64_t kSeedsMax = 1500;

struct Bug {
    int number;
    const char* name;
    const char* missing; // not empty: its place in the source was not found
    bool contested;      // shows where victims are taken all the time
};
constexpr Bug kBugs[] = {
#include "planted_bugs.inc"
};

class PlantedBug : public testing::TestWithParam<Bug> {
  protected:
    void SetUp() override { node::planted_bug = GetParam().number; }
    void TearDown() override { node::planted_bug = 0; }
};

} // namespace

TEST_P(PlantedBug, IsFoundWithinABoundedNumberOfSeeds) {
    const Bug& bug = GetParam();
    ASSERT_STREQ(bug.missing, "") << "plant.py: '" << bug.name << "' has lost its place";
    for (uint64_t seed = 1; seed <= kSeedsMax; ++seed) {
        Plan plan;
        plan.seed = seed;
        plan.limits.contested = bug.contested;
        const Outcome outcome = simulate(plan);
        if (!outcome.found)
            continue;
        // It was this bug: without it the same run breaks nothing.
        node::planted_bug = 0;
        const bool always = simulate(plan).found.has_value();
        node::planted_bug = bug.number;
        if (always)
            continue;
        std::cout << "'" << bug.name << "': found by seed " << seed << ", rule "
                  << outcome.found->rule << ": " << outcome.found->text << '\n';
        RecordProperty("rule", outcome.found->rule);
        RecordProperty("seed", std::to_string(seed));
        return;
    }
    ADD_FAILURE() << "'" << bug.name << "' was not found within " << kSeedsMax << " seeds";
}

TEST(PlantedBugs, AFoundRunIsMadeSmallAndStillBreaksItsRule) {
    node::planted_bug = 9;
    Plan plan;
    Outcome outcome;
    do
        outcome = simulate(plan);
    while (!outcome.found && ++plan.seed < kSeedsMax);
    ASSERT_TRUE(outcome.found);
    const Shrunk small = shrink(plan, outcome, simulate);
    EXPECT_EQ(small.outcome.found->rule, outcome.found->rule);
    EXPECT_LE(small.plan.script->size(), 5U) << to_text(small.plan);
    const std::string text = report(small, simulate);
    EXPECT_NE(text.find(to_text(small.plan)), std::string::npos);
    const auto read = plan_from(to_text(small.plan));
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_TRUE(simulate(*read).found);
    EXPECT_EQ(simulate(*read).found->text, small.outcome.found->text);
    node::planted_bug = 0;
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBug, testing::ValuesIn(kBugs),
                         [](const auto& one) { return "Bug" + std::to_string(one.param.number); });

} // namespace berth::simulate
