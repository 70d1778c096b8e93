// SPDX-License-Identifier: Apache-2.0
// Goal: with batch-invariant shapes a sequence's logits are the same bits whatever runs beside it,
// wherever it sits in the batch, and however often it was sent back. Method: a small random decoder
// on the CPU; a model between scheduler and runner records the logits of one sequence.
#include "engine_shim/reference/model/sampler.h"
#include "engine_shim/reference/model/scheduler.h"
#include "tests/engine/checkpoint_source.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace berth::engine {
namespace {

constexpr uint32_t kTokens = 24;
constexpr uint32_t kChunk = 32;

using Rows = std::vector<std::string>; // the bits of each row

// Records rows of the sequence whose requests carry the seed kWatched.
class Recorder final : public StepModel {
  public:
    static constexpr uint64_t kWatched = 4711;
    explicit Recorder(ModelRunner& runner) : runner_(runner) {}

    Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem> items,
                                                          const LayerHook& hook) override {
        BERTH_ASSIGN(const auto logits, runner_.logits(items, hook));
        if (!logits)
            return std::nullopt;
        std::vector<SampleRow> wanted;
        for (const StepItem& item : items) {
            if (!item.samples)
                continue;
            if (item.params.seed == kWatched) {
                const at::Tensor row = logits->select(0, static_cast<int64_t>(wanted.size()));
                rows.emplace_back(static_cast<const char*>(row.data_ptr()), row.nbytes());
                slots.insert(wanted.size());
            }
            wanted.push_back({item.params, item.sample_index});
        }
        return wanted.empty() ? std::vector<SampledToken>() : sample(*logits, wanted);
    }

    Rows rows;
    std::set<size_t> slots;

  private:
    ModelRunner& runner_;
};

struct Trace {
    Rows rows;
    std::vector<int32_t> tokens;
    std::set<size_t> slots;
    uint64_t preemptions = 0;
};

GenerationRequest request(const std::string& id, uint32_t prompt, uint32_t seed) {
    std::mt19937 random(seed);
    GenerationRequest made;
    made.id = id;
    for (uint32_t i = 0; i < prompt; ++i)
        made.prompt.push_back(static_cast<int32_t>(random() % tiny_config().vocab));
    made.max_new_tokens = kTokens;
    made.temperature = 0;
    made.seed = seed;
    return made;
}

// The watched sequence after `before` others and beside `after` more.
Trace run_among(at::ScalarType dtype, uint32_t before, uint32_t after, uint32_t blocks,
                bool invariant, bool abandon = false) {
    RunnerOptions options;
    options.batch_invariant = invariant;
    options.decode_rows = 8;
    options.chunk_rows = kChunk;
    TestModel model =
        make_test_model(tiny_config(), random_weights(tiny_config(), dtype), blocks, options);
    Recorder recorder(*model.runner);
    Scheduler scheduler({8, kChunk, kTestBlockTokens, invariant}, {});
    scheduler.allocator().resize(blocks);
    Trace run;
    const auto add_neighbours = [&](uint32_t count, uint32_t first) {
        for (uint32_t i = first; i < first + count; ++i)
            scheduler.add(request("n" + std::to_string(i), 5 + i * 17 % 90, 100 + i),
                          [](const TokenEvent&) {});
    };
    add_neighbours(before, 0);
    scheduler.add(request("watched", 70, Recorder::kWatched), [&](const TokenEvent& event) {
        if (event.token >= 0)
            run.tokens.push_back(event.token);
    });
    add_neighbours(after, before);
    std::mt19937 random(5);
    while (!scheduler.idle()) {
        const bool give_up = abandon && random() % 3 == 0;
        const auto done = scheduler.step(
            recorder, [&](uint32_t layer) { return !give_up || layer < random() % 3; });
        EXPECT_TRUE(done) << done.error().message;
    }
    run.rows = recorder.rows;
    run.slots = recorder.slots;
    run.preemptions = scheduler.counts().preemptions;
    return run;
}

class Invariance : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Invariance, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(Invariance, LogitsAreTheSameBitsAloneAndAmongSevenNeighbours) {
    const Trace alone = run_among(GetParam(), 0, 0, 100, true);
    ASSERT_EQ(alone.rows.size(), kTokens);
    for (const uint32_t before : {0U, 3U, 7U}) {
        const Trace among = run_among(GetParam(), before, 7 - before, 100, true);
        EXPECT_EQ(among.tokens, alone.tokens);
        EXPECT_TRUE(among.rows == alone.rows) << "bits differ after " << before << " others";
        EXPECT_GT(before == 7 ? *among.slots.rbegin() : 7U, 4U);
    }
}

TEST_P(Invariance, LogitsAreTheSameBitsAfterBeingSentBack) {
    const Trace alone = run_among(GetParam(), 0, 0, 100, true);
    const Trace short_of_blocks = run_among(GetParam(), 7, 0, 26, true);
    EXPECT_GT(short_of_blocks.preemptions, 0U);
    EXPECT_EQ(short_of_blocks.tokens, alone.tokens);
    EXPECT_TRUE(short_of_blocks.rows == alone.rows);
}

TEST_P(Invariance, LogitsAreTheSameBitsWhenStepsAreAbandonedBetweenLayers) {
    const Trace alone = run_among(GetParam(), 0, 0, 100, true);
    const Trace disturbed = run_among(GetParam(), 3, 4, 100, true, true);
    EXPECT_EQ(disturbed.tokens, alone.tokens);
    EXPECT_TRUE(disturbed.rows == alone.rows);
}

// If plain shapes gave the same bits too, the tests above would show nothing.
TEST(PlainShapes, DoDiffer) {
    const Trace alone = run_among(at::kFloat, 0, 0, 100, false);
    const Trace among = run_among(at::kFloat, 3, 4, 100, false);
    EXPECT_FALSE(among.rows == alone.rows);
}

} // namespace
} // namespace berth::engine
