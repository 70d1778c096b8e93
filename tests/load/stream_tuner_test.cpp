// SPDX-License-Identifier: Apache-2.0
// Goal: the number of disk streams comes to what the disk is fastest with, stays there, and little
// of the load is read with worse ones on the way. Method: made-up disks, as functions from the
// number of streams to bytes a second.
#include "cache/load/stream_tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

namespace berth {
namespace {

using Disk = std::function<double(int streams)>;

// Reads for so many measurements; how many of them each count had.
std::map<int, int> read_with(StreamTuner& tuner, const Disk& disk, int measurements,
                             bool wanted_more = true) {
    std::map<int, int> used;
    for (int i = 0; i < measurements; ++i) {
        int streams = tuner.streams();
        ++used[streams];
        tuner.measured(disk(streams), wanted_more);
    }
    return used;
}

double slower_with_more(int streams) {
    return streams == 1 ? 1.5e9 : streams <= 4 ? 1.15e9 : 1.07e9;
}
double gains_until(int streams, int peak) {
    return 1e9 * std::min(streams, peak) - 1e7 * std::max(0, streams - peak);
}

TEST(StreamTuner, StaysAtOneStreamWhereMoreAreSlower) {
    StreamTuner tuner;
    auto used = read_with(tuner, slower_with_more, 200);
    EXPECT_EQ(tuner.best(), 1);
    EXPECT_GE(used[1], 180) << "of 200 measurements";
}

TEST(StreamTuner, ClimbsToWhereTheDiskGainsNothingMore) {
    for (int peak : {2, 3, 4, 6, 8, 12, 16}) {
        StreamTuner tuner;
        auto used = read_with(tuner, [&](int streams) { return gains_until(streams, peak); }, 20);
        EXPECT_EQ(tuner.best(), peak);
        read_with(tuner, [&](int streams) { return gains_until(streams, peak); }, 300);
        EXPECT_EQ(tuner.best(), peak);
    }
}

TEST(StreamTuner, AFlatDiskIsReadWithFewStreams) {
    StreamTuner tuner;
    read_with(tuner, [](int) { return 2e9; }, 500);
    EXPECT_EQ(tuner.best(), 1);
}

TEST(StreamTuner, NoiseCostsLittle) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> noise(0.98, 1.02);
    StreamTuner tuner;
    double best = gains_until(6, 6);
    double sum = 0;
    int count = 0;
    for (int i = 0; i < 400; ++i) {
        double rate = gains_until(tuner.streams(), 6);
        if (i >= 20) {
            sum += rate;
            ++count;
        }
        tuner.measured(rate * noise(random), true);
    }
    EXPECT_GE(sum / count, 0.95 * best);
}

TEST(StreamTuner, TriesNoMoreStreamsThanFindWork) {
    StreamTuner tuner;
    auto used = read_with(tuner, [](int streams) { return 1e9 * streams; }, 300, false);
    EXPECT_EQ(used.size(), 1U);
    EXPECT_EQ(used[1], 300);
}

TEST(StreamTuner, FollowsADiskThatChanges) {
    StreamTuner tuner;
    read_with(tuner, [](int streams) { return gains_until(streams, 8); }, 100);
    EXPECT_EQ(tuner.best(), 8);
    // Somebody else reads it now: seeks cost more than queues gain.
    read_with(tuner, slower_with_more, 600);
    EXPECT_EQ(tuner.best(), 1);
}

TEST(StreamTuner, RatesOfAnEarlierTimeDoNotHoldACount) {
    StreamTuner tuner;
    read_with(tuner, [](int streams) { return 10 * gains_until(streams, 4); }, 50);
    EXPECT_EQ(tuner.best(), 4);
    // All of it ten times slower, and better with more: the old rate would win for ever.
    read_with(tuner, [](int streams) { return gains_until(streams, 12); }, 600);
    EXPECT_EQ(tuner.best(), 12);
}

} // namespace
} // namespace berth
