// SPDX-License-Identifier: Apache-2.0
// Goal: an engine that computes nothing of use does not start.
#include "engine_shim/reference/model/canary.h"
#include "tests/engine/running_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace berth::engine {
namespace {

TEST(Canary, NamesTheFirstLogitThatIsNotFinite) {
    const std::string digest =
        canary_digest(std::vector<float>{1, std::numeric_limits<float>::infinity(), std::nanf("")});
    EXPECT_EQ(digest, "not finite at logit 1");
    EXPECT_FALSE(is_finite(digest));
    EXPECT_TRUE(is_finite(canary_digest(std::vector<float>{1, -2})));
}

TEST(Canary, AnEngineWhoseFirstStepIsNotFiniteDoesNotStart) {
    TestParts parts;
    parts.weights.layers[1].up.weight.fill_(std::numeric_limits<float>::quiet_NaN());
    KvMemory another(KvMemory::Parts{*parts.device, *parts.arena, *parts.runner, *parts.scheduler});
    const Status started = another.start(parts.grant);
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().reason, "CanaryNotFinite");
    EXPECT_NE(started.error().message.find("not finite at logit 0"), std::string::npos)
        << started.error().message;
}

} // namespace
} // namespace berth::engine
