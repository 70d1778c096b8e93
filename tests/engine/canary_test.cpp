// SPDX-License-Identifier: Apache-2.0
// Goal: what one step of a model tells of it holds between engines, and one that computes nothing
// of use does not start.
#include "tests/engine/running_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace berth::engine {
namespace {

TEST(Canary, TellsTheLikeliestTokensFirstAndOfEqualsTheLowerOne) {
    const std::vector<float> logits{1, 5, 3, 5, 2, 4, -7};
    EXPECT_EQ(canary_of(logits).tokens, (std::vector<uint64_t>{1, 3, 5, 2, 4}));
    EXPECT_EQ(canary_of(std::vector<float>{0.5F, 2}).tokens, (std::vector<uint64_t>{1, 0}));
}

TEST(Canary, NamesTheFirstLogitThatIsNotFiniteAndNoTokens) {
    const Canary canary =
        canary_of(std::vector<float>{1, std::numeric_limits<float>::infinity(), std::nanf("")});
    EXPECT_EQ(canary.digest, "not finite at logit 1");
    EXPECT_TRUE(canary.tokens.empty());
}

TEST(Canary, AnEngineWhoseFirstStepIsNotFiniteDoesNotStart) {
    TestParts parts;
    EXPECT_EQ(parts.memory->canary().tokens.size(), 5U);
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
