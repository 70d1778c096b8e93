// SPDX-License-Identifier: Apache-2.0
// Goal: tokens are drawn from the distribution that the parameters describe, and the same seed
// draws the same. Method: few logits, many draws, frequencies against exact probabilities.
#include "engine_shim/reference/model/sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace berth::engine {
namespace {

const std::vector<float> kLogits = {0.0F, 2.0F, 1.0F, -1.0F, 1.5F};

std::vector<double> frequencies(SamplingParams params, int draws = 40000) {
    const at::Tensor logits = at::tensor(kLogits).unsqueeze(0);
    std::vector<double> seen(kLogits.size());
    for (int i = 0; i < draws; ++i) {
        const SampleRow row{params, static_cast<uint32_t>(i)};
        const auto token = static_cast<size_t>(sample(logits, std::span(&row, 1))[0].token);
        seen[token] += 1.0 / draws;
    }
    return seen;
}

std::vector<double> softmax(double temperature, const std::vector<size_t>& allowed) {
    std::vector<double> made(kLogits.size());
    double sum = 0;
    for (const size_t token : allowed)
        sum += made[token] = std::exp(static_cast<double>(kLogits[token]) / temperature);
    for (double& one : made)
        one /= sum;
    return made;
}

void expect_near(const std::vector<double>& seen, const std::vector<double>& expected) {
    for (size_t token = 0; token < seen.size(); ++token)
        EXPECT_NEAR(seen[token], expected[token], 0.012) << "token " << token;
}

TEST(Sampler, TemperatureShapesTheDistribution) {
    SamplingParams params;
    expect_near(frequencies(params), softmax(1.0, {0, 1, 2, 3, 4}));
    params.temperature = 0.5F;
    expect_near(frequencies(params), softmax(0.5, {0, 1, 2, 3, 4}));
}

TEST(Sampler, TopKAndTopPCutTheTail) {
    SamplingParams params;
    params.top_k = 3;
    expect_near(frequencies(params), softmax(1.0, {1, 4, 2}));
    params.top_k = 0;
    params.top_p = 0.7F; // 0.46, 0.28 reach it
    expect_near(frequencies(params), softmax(1.0, {1, 4}));
    params.top_k = 2;
    params.top_p = 0.5F; // of the two, the first has 0.62
    expect_near(frequencies(params), softmax(1.0, {1}));
}

TEST(Sampler, TheSameSeedAndIndexDrawTheSame) {
    const at::Tensor logits = at::randn({1, 1000});
    SamplingParams params;
    std::set<int32_t> different;
    for (uint32_t index = 0; index < 50; ++index) {
        params.seed = 9;
        const SampleRow row{params, index};
        const int32_t token = sample(logits, std::span(&row, 1))[0].token;
        EXPECT_EQ(token, sample(logits, std::span(&row, 1))[0].token);
        different.insert(token);
    }
    EXPECT_GT(different.size(), 20U);
}

TEST(Sampler, ALargeVocabularyFindsTheSameNucleus) {
    // 200 equal tokens of 5000 hold nearly all: the nucleus is larger than the first look.
    at::Tensor logits = at::full({1, 5000}, -30.0F);
    logits.narrow(1, 100, 200).fill_(1.0F);
    SamplingParams params;
    params.top_p = 0.9F;
    int32_t highest = 0;
    for (uint32_t index = 0; index < 3000; ++index) {
        const SampleRow row{params, index};
        const int32_t token = sample(logits, std::span(&row, 1))[0].token;
        EXPECT_GE(token, 100);
        highest = std::max(highest, token);
    }
    EXPECT_GE(highest, 270);
    EXPECT_LE(highest, 281); // 180 tokens reach 0.9, plus rounding
}

TEST(Sampler, GreedyTellsLogprobs) {
    SamplingParams params;
    params.temperature = 0;
    params.logprobs = 2;
    const SampleRow row{params, 0};
    const SampledToken made = sample(at::tensor(kLogits).unsqueeze(0), std::span(&row, 1))[0];
    const std::vector<double> expected = softmax(1.0, {0, 1, 2, 3, 4});
    EXPECT_EQ(made.token, 1);
    EXPECT_NEAR(made.logprob, std::log(expected[1]), 1e-5);
    ASSERT_EQ(made.top.size(), 2U);
    EXPECT_EQ(made.top[1].first, 4);
    EXPECT_NEAR(made.top[1].second, std::log(expected[4]), 1e-5);
}

} // namespace
} // namespace berth::engine
