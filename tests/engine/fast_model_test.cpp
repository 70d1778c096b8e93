// SPDX-License-Identifier: Apache-2.0
// Goal: the fast path computes the model. Method: small random decoders in bf16 run step by step on
// an emulated device (see emulated_queue.h), against the plain mathematics of decoder.h on the same
// weights, in float32 and in bf16 (fast_twins.h); prompts, decodes, mixed steps, graphs, looks at
// the gate.
#include "tests/engine/emulated_queue.h"
#include "tests/engine/fast_twins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace berth::engine::fast {
namespace {

using test::EmulatedQueue;

Result<std::unique_ptr<Queue>> make_emulated(const Buffers&) {
    return std::make_unique<EmulatedQueue>();
}

Growing sequence(uint32_t length, std::vector<uint32_t> blocks) {
    return random_sequence(length, small_config().vocab, std::move(blocks));
}

// Prompts in chunks, then decodes beside a prompt, then decodes alone.
void generate(Twins& twins, uint32_t steps) {
    Growing a = sequence(37, {5, 1, 9, 20}), b = sequence(21, {2, 17, 3}), c = sequence(18, {8, 4});
    const auto grow = [](Growing& one, int32_t token) { one.tokens.push_back(token); };
    std::vector<int32_t> best = twins.step({a.next(32), b.next(21)});
    ASSERT_EQ(best.size(), 1U);
    grow(b, best[0]);
    best = twins.step({b.next(1), a.next(5), c.next(17)});
    ASSERT_EQ(best.size(), 2U);
    grow(b, best[0]);
    grow(a, best[1]);
    best = twins.step({b.next(1), a.next(1), c.next(1)});
    ASSERT_EQ(best.size(), 3U);
    for (uint32_t i = 0; i < steps; ++i) {
        grow(b, best[0]);
        grow(a, best[1]);
        grow(c, best[2]);
        best = twins.step({b.next(1), a.next(1), c.next(1)});
        ASSERT_EQ(best.size(), 3U);
    }
    twins.expect_no_more_than_rounding();
}

TEST(FastModel, PromptsAndDecodesEqualThePlainMathematics) {
    Twins twins({small_config()}, make_emulated);
    auto& queue = dynamic_cast<EmulatedQueue&>(twins.queue());
    generate(twins, 4);
    EXPECT_GT(queue.products, 0U) << "prompts go through the library";
    EXPECT_GT(twins.model().graph_steps(), 0U) << "decodes become graphs";
}

TEST(FastModel, BiasesOfQueriesKeysAndValues) {
    ModelConfig config = small_config();
    config.qkv_bias = true;
    Twins twins({config}, make_emulated);
    generate(twins, 2);
}

TEST(FastModel, NormsOfHeadsAndLongerHeads) {
    ModelConfig config = small_config();
    config.qk_norm = true;
    config.head_dim = 128;
    config.kv_heads = 1;
    Twins twins({config}, make_emulated);
    generate(twins, 2);
}

TEST(FastModel, Fp8MatricesByBothWays) {
    ModelConfig config = small_config();
    config.hidden = 256;
    config.intermediate = 320;
    Twins twins({config, true}, make_emulated);
    generate(twins, 2);
}

TEST(FastModel, ScaledRotaryFrequencies) {
    ModelConfig config = small_config();
    config.rope.type = "yarn";
    config.rope.factor = 4;
    config.rope.original_max_positions = 64;
    Twins twins({config,
                 false,
                 {.row_warps = 2,
                  .stream_rows = 0,
                  .stream_rows_pair = 0,
                  .attend_groups = 24,
                  .graphs = false}},
                make_emulated);
    generate(twins, 1);
    EXPECT_EQ(twins.model().graph_steps(), 0U);
}

TEST(FastModel, AttentionInSeveralKernelsGivesTheSame) {
    Twins twins({small_config(), false, {.attend_all = false, .attend_groups = 24}}, make_emulated);
    generate(twins, 2);
}

TEST(FastModel, ADeviceWithoutGraphsIsServedWithoutThem) {
    Twins twins({small_config()}, make_emulated);
    auto& queue = dynamic_cast<EmulatedQueue&>(twins.queue());
    queue.refuses_recording = true;
    generate(twins, 3);
    EXPECT_EQ(twins.model().graph_steps(), 0U);
    EXPECT_NE(twins.model().take_warning(), "") << "and it is told";
    EXPECT_EQ(twins.model().take_warning(), "") << "once";
}

// What tests/gpu/fast_gpu_test.cpp does with the real kernels: figures can be compared.
TEST(FastModel, SequencesOfSeveralLengths) {
    Twins::Setting setting;
    setting.config = wide_config(8, 2, 64);
    setting.limits = {8, 512, 48};
    setting.blocks = 8 * kWideBlocks;
    setting.contexts_max = 600;
    run_sequences(setting, make_emulated, 2, 2, "4 heads a key head of 64");
    setting.config = wide_config(8, 2, 128);
    setting.fp8 = true;
    run_sequences(setting, make_emulated, 2, 2, "FP8");
}

// Whatever was computed in between, and by a graph too.
TEST(FastModel, ItsCanaryIsTheSameThroughAnyBlockUntilAWeightChanges) {
    Twins twins({small_config()}, make_emulated);
    const auto first = twins.model().canary(7);
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_EQ(first->size(), 64U) << *first;
    generate(twins, 4);
    ASSERT_TRUE(twins.model().record_now(1));
    const uint64_t graphs = twins.model().graph_steps();
    EXPECT_EQ(*twins.model().canary(22), *first);
    EXPECT_GT(twins.model().graph_steps(), graphs);
    twins.set_a_weight(0.5F);
    EXPECT_NE(*twins.model().canary(7), *first);
    twins.set_a_weight(std::numeric_limits<float>::quiet_NaN());
    EXPECT_THAT(*twins.model().canary(7), ::testing::StartsWith("not finite at logit"));
}

TEST(FastModel, NothingIsQueuedWhereTheGateIsLookedAt) {
    // Less than any layer takes here: one layer a piece.
    const LookLimits looks{std::chrono::microseconds(1), std::chrono::microseconds(1)};
    Twins twins({small_config(), false, {.attend_groups = 24}, looks}, make_emulated);
    auto& queue = dynamic_cast<EmulatedQueue&>(twins.queue());
    generate(twins, 1);
    ASSERT_TRUE(twins.model().record_now(2));
    Growing a = sequence(20, {5, 1}), b = sequence(3, {2});
    (void)twins.step({a.next(19), b.next(2)});
    const uint64_t graphs = queue.graphs_started;
    std::vector<uint32_t> layers;
    (void)twins.step({a.next(1), b.next(1)}, [&](uint32_t layer) {
        layers.push_back(layer);
        EXPECT_EQ(queue.queued_layers, 0U) << "at layer " << layer;
        return true;
    });
    EXPECT_EQ(layers, (std::vector<uint32_t>{0, 1, 2, 3})) << "each layer, and the head";
    EXPECT_EQ(queue.graphs_started - graphs, 4U);
}

// A gate that closes and opens while the device is at work.
TEST(FastModel, AGraphThatLooksByItselfStopsAtAClosedGateAndGoesOnWhereItStopped) {
    std::atomic<uint32_t> word{40};
    Twins::Setting setting{small_config(),
                           false,
                           {.attend_groups = 24, .device_looks = true},
                           {std::chrono::microseconds(1), std::chrono::microseconds(1)}};
    setting.gate_word = &word;
    Twins twins(setting, make_emulated);
    auto& queue = dynamic_cast<EmulatedQueue&>(twins.queue());
    generate(twins, 1);
    ASSERT_TRUE(twins.model().record_now(2));
    Growing a = sequence(20, {5, 1}), b = sequence(3, {2});
    (void)twins.step({a.next(19), b.next(2)});
    bool is_closed = false;
    std::vector<uint32_t> looks;
    const LayerHook opens = [&](uint32_t layer) {
        looks.push_back(layer);
        if (std::exchange(is_closed, false))
            ++word; // as at every opening
        return true;
    };
    queue.before_look = [&](uint32_t section) {
        if (section == 2 && twins.model().cut_short() == 0) {
            is_closed = true;
            ++word;
        }
    };
    (void)twins.step({a.next(1), b.next(1)}, opens);
    EXPECT_EQ(looks, (std::vector<uint32_t>{0, 2, 2})) << "the last for the word that changed";
    EXPECT_EQ(twins.model().cut_short(), 1U);
    a.tokens.push_back(3);
    b.tokens.push_back(4);
    looks.clear();
    (void)twins.step({a.next(1), b.next(1)}, opens);
    EXPECT_EQ(looks, (std::vector<uint32_t>{0})) << "and the device looks for itself";
    twins.expect_no_more_than_rounding();
}

TEST(FastModel, AnAbandonedStepIsDoneAgainWithTheSameResult) {
    const LookLimits looks{std::chrono::microseconds(1), std::chrono::microseconds(1)};
    Twins twins({small_config(), false, {.attend_groups = 24}, looks}, make_emulated);
    Growing a = sequence(30, {5, 1});
    for (const uint32_t stop : {1U, 3U}) {
        Growing same = a;
        const StepItem item = same.next(29);
        const auto outcome = twins.model().step(std::span(&item, 1),
                                                [stop](uint32_t layer) { return layer < stop; });
        ASSERT_TRUE(outcome);
        EXPECT_FALSE(*outcome);
    }
    (void)twins.step({a.next(29)});
    for (int i = 0; i < 2; ++i) {
        Growing same = a;
        const StepItem item = same.next(1);
        const auto outcome =
            twins.model().step(std::span(&item, 1), [](uint32_t layer) { return layer < 2; });
        ASSERT_TRUE(outcome);
        EXPECT_FALSE(*outcome);
    }
    EXPECT_EQ(twins.step({a.next(1)}).size(), 1U);
}

TEST(FastModel, ModelsThatTheKernelsCannotTakeAreNamed) {
    const ModelConfig config = small_config();
    const TwinModels models = random_models(config, false);
    EXPECT_EQ(why_not_fast(config, models.narrow), "");
    EXPECT_NE(why_not_fast(config, models.wide), "");
    ModelConfig other = config;
    other.head_dim = 80;
    EXPECT_NE(why_not_fast(other, models.narrow), "");
    other = config;
    other.rope.type = "dynamic";
    EXPECT_NE(why_not_fast(other, models.narrow), "");
    DecoderWeights biased = models.narrow;
    biased.layers[1].o_bias = biased.layers[1].input_norm;
    EXPECT_NE(why_not_fast(config, biased), "");
}

} // namespace
} // namespace berth::engine::fast
