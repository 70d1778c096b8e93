// SPDX-License-Identifier: Apache-2.0
// Goal: what an operator may rely on, scenario by scenario (tests/node/scenarios/*.txt).
// Method: each scenario is played against the reducer with fake engines; the invariants hold after
// every event.
#include "tests/node/scenario_runner.h"

#include <gtest/gtest.h>

namespace berth::node::test {

class NodeScenario : public testing::TestWithParam<Scenario> {};

TEST_P(NodeScenario, Holds) {
    Runner runner(BERTH_SCENARIOS);
    EXPECT_EQ(runner.run(GetParam()), "");
}

std::string test_name(const testing::TestParamInfo<Scenario>& info) {
    std::string name;
    for (char c : info.param.name)
        name += (std::isalnum(static_cast<unsigned char>(c)) != 0) ? c : '_';
    return name;
}

void PrintTo(const Scenario& scenario, std::ostream* out) {
    *out << scenario.where;
}

INSTANTIATE_TEST_SUITE_P(All, NodeScenario, testing::ValuesIn(read_scenarios(BERTH_SCENARIOS)),
                         test_name);

} // namespace berth::node::test
