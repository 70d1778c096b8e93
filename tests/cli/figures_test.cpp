// SPDX-License-Identifier: Apache-2.0
// Goal: a bench's line says what was measured. Method: figures of known samples.
#include "scheduler/cli/bench/figures.h"

#include <gtest/gtest.h>

namespace berth::cli::bench {
namespace {

TEST(Figures, PercentilesAreByRankAndNeverBeyondTheSamples) {
    std::vector<double> samples;
    for (int i = 100; i >= 1; --i)
        samples.push_back(i);
    EXPECT_EQ(percentile(samples, 50), 50);
    EXPECT_EQ(percentile(samples, 99), 99);
    EXPECT_EQ(percentile(samples, 100), 100);
    EXPECT_EQ(percentile({7}, 99), 7);
    EXPECT_EQ(percentile({}, 50), 0);
}

TEST(Figures, TheRatioIsOfTheMediansAndAbsentWithoutAFloor) {
    Figure figure{"attach", "attach", {2, 4, 6}, {2, 2, 8}, "mmap", "all", {{"bytes", 5}}};
    json::object line = to_json(figure);
    EXPECT_EQ(line.at("p50"), 4.0);
    EXPECT_EQ(line.at("ratio"), 2.0);
    EXPECT_EQ(line.at("rounds"), 3);
    EXPECT_EQ(line.at("bytes"), 5);
    figure.floor.clear();
    EXPECT_TRUE(to_json(figure).at("ratio").is_null());
}

} // namespace
} // namespace berth::cli::bench
