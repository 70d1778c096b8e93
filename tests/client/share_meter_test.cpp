// SPDX-License-Identifier: Apache-2.0
// Goal: through a closed gate an engine runs for its share of the time, however far apart its looks
// are; and what online can spare follows its latencies. Method: a clock that the test moves.
#include "engine_shim/client/share_meter.h"

#include <gtest/gtest.h>

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

TEST(SpareTime, IsNothingWithoutTargets) {
    SpareTime spare;
    EXPECT_EQ(spare.after({}, 1ms, 1ms), 0U);
    for (int n = 0; n < 10; ++n)
        spare.after({200ms, 0ms}, 1ms, 1ms);
    EXPECT_EQ(spare.after({}, 1ms, 1ms), 0U);
}

} // namespace
} // namespace berth
