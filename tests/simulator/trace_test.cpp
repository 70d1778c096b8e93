// SPDX-License-Identifier: Apache-2.0
// Goal: what a failing seed prints is enough to see it again. Method: runs are told as text, read
// back and made once more; logs must be equal line by line.
#include "scheduler/simulate/trace.h"

#include <gtest/gtest.h>

namespace berth::simulate {

namespace {

Plan logged(uint64_t seed) {
    Plan plan;
    plan.seed = seed;
    plan.keeps_log = true;
    return plan;
}

} // namespace

TEST(SimulatorTrace, TheSameSeedGivesTheSameTrace) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const Outcome one = simulate(logged(seed)), two = simulate(logged(seed));
        ASSERT_EQ(one.log, two.log) << "seed " << seed;
        ASSERT_GT(one.log.size(), 100U) << "seed " << seed;
        EXPECT_EQ(one.events, two.events);
    }
}

TEST(SimulatorTrace, ARunThatIsToldAsTextHappensAgain) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const Plan drawn = logged(seed);
        const Outcome outcome = simulate(drawn);
        auto read = plan_from(to_text(spelled_out(drawn, outcome)));
        ASSERT_TRUE(read) << read.error().message;
        read->keeps_log = true;
        const Outcome again = simulate(*read);
        EXPECT_EQ(outcome.script.size(), again.script.size());
        // Faults cease at the same microsecond, not at the same event.
        size_t same = 0;
        while (same < outcome.log.size() && same < again.log.size() &&
               outcome.log[same] == again.log[same])
            ++same;
        EXPECT_GT(same * 10, outcome.log.size() * 3)
            << "seed " << seed << ": " << outcome.log[same];
    }
}

TEST(SimulatorTrace, AnEngineThatIsLeftOutLeavesTheOthersFaultsAsTheyWere) {
    Plan all = logged(4);
    const Shape shape = draw_shape(all.seed);
    Plan fewer = all;
    fewer.without.insert(shape.documents.instances.front().name);
    const Shape rest = draw_shape(all.seed, fewer.without);
    ASSERT_EQ(rest.documents.instances.size() + 1, shape.documents.instances.size());
    EXPECT_EQ(rest.documents.instances.back(), shape.documents.instances.back());
    Nanoseconds gap{0}, gap_of_fewer{0};
    const Dice dice(all.seed);
    for (uint64_t n = 0; n < 50; ++n)
        EXPECT_EQ(to_text(draw_stimulus(dice, n, shape, gap)),
                  to_text(draw_stimulus(dice, n, rest, gap_of_fewer)));
}

TEST(SimulatorTrace, ATraceThatCannotBeReadSaysWhere) {
    const auto unknown = plan_from("seed 1\n5us explodes i1 0 0 #0\n");
    ASSERT_FALSE(unknown);
    EXPECT_NE(unknown.error().message.find("line 2"), std::string::npos);
    EXPECT_NE(unknown.error().message.find("explodes"), std::string::npos);
    const auto number = plan_from("seed many\n");
    ASSERT_FALSE(number);
    EXPECT_NE(number.error().message.find("many"), std::string::npos);
    EXPECT_FALSE(plan_from("seed 1\n5us preempt i1 x 0 #0\n"));
}

TEST(SimulatorTrace, NodesAreMostlySmallAndSometimesLarge) {
    size_t small = 0, devices_most = 0, instances_most = 0;
    for (uint64_t seed = 1; seed <= 2000; ++seed) {
        const Shape shape = draw_shape(seed);
        small += shape.devices.size() <= 2 && shape.documents.instances.size() <= 8 ? 1 : 0;
        devices_most = std::max(devices_most, shape.devices.size());
        instances_most = std::max(instances_most, shape.documents.instances.size());
    }
    EXPECT_GT(small, 1800U);
    EXPECT_EQ(devices_most, 16U);
    EXPECT_GT(instances_most, 900U);
}

} // namespace berth::simulate
