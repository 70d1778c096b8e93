// SPDX-License-Identifier: Apache-2.0
// Goal: whatever the order, sizes and shortage of blocks, every sequence gets the tokens of a run
// on its own. Method: a fake model that reads its context back from the blocks it was given.
#include "engine_shim/reference/model/scheduler.h"
#include "tests/engine/fake_step_model.h"

#include <random>
#include <set>

namespace berth::engine {
namespace {

using Outcome = Scheduler::Outcome;

struct Answers {
    std::map<std::string, std::vector<int32_t>> tokens;
    std::map<std::string, TokenEvent> last;
    TokenCallback callback() {
        return [this](const TokenEvent& event) {
            EXPECT_FALSE(last.contains(event.id)) << "an event after the last of " << event.id;
            if (event.token >= 0) {
                EXPECT_EQ(event.index, tokens[event.id].size());
                tokens[event.id].push_back(event.token);
            }
            if (event.finished)
                last[event.id] = event;
        };
    }
};

GenerationRequest request(const std::string& id, size_t prompt, uint32_t count) {
    GenerationRequest made;
    made.id = id;
    for (size_t i = 0; i < prompt; ++i)
        made.prompt.push_back(static_cast<int32_t>((std::hash<std::string>()(id) + i * 7) % 1000));
    made.max_new_tokens = count;
    made.temperature = 0;
    return made;
}

SchedulerLimits small_limits(bool invariant = false, bool keep_prefixes = false) {
    return {4, 8, FakeStepModel::kBlockTokens, invariant, keep_prefixes};
}

void run(Scheduler& scheduler, StepModel& model, int steps_max = 10000) {
    while (!scheduler.idle()) {
        ASSERT_GT(--steps_max, 0) << "it does not end";
        const auto outcome = scheduler.step(model, {});
        ASSERT_TRUE(outcome) << outcome.error().message;
        ASSERT_NE(*outcome, Outcome::kIdle);
    }
}

class SchedulerModes : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, SchedulerModes, testing::Bool(),
                         [](const auto& info) { return info.param ? "BatchInvariant" : "Plain"; });

TEST_P(SchedulerModes, EverySequenceGetsTheTokensOfARunOnItsOwn) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
        std::mt19937 random(seed);
        Scheduler scheduler(small_limits(GetParam()), {});
        scheduler.allocator().resize(16 + random() % 20);
        FakeStepModel model;
        Answers answers;
        std::vector<GenerationRequest> requests;
        for (int i = 0; i < 9; ++i)
            requests.push_back(
                request("r" + std::to_string(i), 1 + random() % 30, 1 + random() % 25));
        for (const GenerationRequest& one : requests) {
            scheduler.add(one, answers.callback());
            if (random() % 2 == 0)
                ASSERT_TRUE(scheduler.step(model, {}));
        }
        run(scheduler, model);
        for (const GenerationRequest& one : requests) {
            EXPECT_EQ(answers.tokens[one.id],
                      FakeStepModel::expected(one.prompt, one.max_new_tokens))
                << "seed " << seed << ", " << one.id;
            EXPECT_EQ(answers.last[one.id].finish_reason, FinishReason::kLength);
        }
        EXPECT_EQ(scheduler.allocator().free(), scheduler.allocator().total());
    }
}

TEST_P(SchedulerModes, APromptThatBeginsAsAnotherGoesOnFromWhatThatLeft) {
    Scheduler scheduler(small_limits(GetParam(), true), {});
    scheduler.allocator().resize(40);
    FakeStepModel model;
    Answers answers;
    const GenerationRequest first = request("first", 29, 6);
    scheduler.add(first, answers.callback());
    run(scheduler, model);
    EXPECT_EQ(scheduler.counts().prefix_tokens, 0U);
    // 28 of its tokens fill blocks; batch-invariant, three chunks of 8.
    GenerationRequest same = first, longer = first, other = first;
    same.id = "same";
    longer.id = "longer";
    longer.prompt.insert(longer.prompt.end(), {5, 6, 7, 8, 9});
    other.id = "other";
    other.prompt[0] += 1;
    const uint64_t found = GetParam() ? 24 : 28;
    uint64_t expected = 0, computed = scheduler.counts().prompt_tokens;
    for (const GenerationRequest& one : {same, longer, other}) {
        scheduler.add(one, answers.callback());
        run(scheduler, model);
        EXPECT_EQ(answers.tokens[one.id], FakeStepModel::expected(one.prompt, 6)) << one.id;
        const uint64_t hit = one.id == "other" ? 0 : found;
        EXPECT_EQ(scheduler.counts().prefix_tokens, expected += hit) << one.id;
        EXPECT_EQ(scheduler.counts().prompt_tokens, computed += one.prompt.size() - hit) << one.id;
    }
    EXPECT_EQ(scheduler.allocator().free(), scheduler.allocator().total());
}

TEST(Prefixes, AnAnswerIsAPartOfTheNextPromptButNotBatchInvariant) {
    for (const bool invariant : {false, true}) {
        Scheduler scheduler(small_limits(invariant, true), {});
        scheduler.allocator().resize(40);
        FakeStepModel model;
        Answers answers;
        const GenerationRequest first = request("first", 8, 9);
        scheduler.add(first, answers.callback());
        run(scheduler, model);
        GenerationRequest next = first;
        next.id = "next";
        next.prompt.insert(next.prompt.end(), answers.tokens["first"].begin(),
                           answers.tokens["first"].end());
        scheduler.add(next, answers.callback());
        run(scheduler, model);
        EXPECT_EQ(scheduler.counts().prefix_tokens, invariant ? 8U : 16U);
        EXPECT_EQ(answers.tokens["next"], FakeStepModel::expected(next.prompt, 9));
    }
}

TEST(Prefixes, OfAStepThatFailedAreNotUsed) {
    Scheduler scheduler(small_limits(false, true), {});
    scheduler.allocator().resize(40);
    FakeStepModel model;
    Answers answers;
    scheduler.add(request("a", 16, 4), answers.callback());
    ASSERT_TRUE(scheduler.step(model, {}));
    model.fail_next = true;
    ASSERT_FALSE(scheduler.step(model, {}));
    EXPECT_EQ(scheduler.allocator().free(), 40U);
    EXPECT_EQ(scheduler.allocator().kept(), 0U);
}

TEST_P(SchedulerModes, PromptsThatShareBeginningsGetTheTokensOfARunOnTheirOwnThroughShortage) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
        std::mt19937 random(seed);
        Scheduler scheduler(small_limits(GetParam(), true), {});
        scheduler.allocator().resize(16 + random() % 20);
        FakeStepModel model;
        Answers answers;
        std::vector<GenerationRequest> requests;
        for (int i = 0; i < 14; ++i) {
            GenerationRequest one = request("of " + std::to_string(random() % 3), 30, 1);
            one.id = "r" + std::to_string(i);
            one.prompt.resize(1 + random() % 30);
            one.max_new_tokens = 1 + random() % 25;
            requests.push_back(one);
        }
        for (const GenerationRequest& one : requests) {
            scheduler.add(one, answers.callback());
            for (uint32_t steps = random() % 9; steps > 0; --steps)
                ASSERT_TRUE(scheduler.step(model, {}));
            if (random() % 5 == 0 && !scheduler.running().empty())
                scheduler.suspend(scheduler.running().back().order, nullptr);
        }
        run(scheduler, model);
        for (const GenerationRequest& one : requests)
            EXPECT_EQ(answers.tokens[one.id],
                      FakeStepModel::expected(one.prompt, one.max_new_tokens))
                << "seed " << seed << ", " << one.id;
        EXPECT_GT(scheduler.counts().prefix_tokens, 0U) << seed;
        EXPECT_EQ(scheduler.allocator().free(), scheduler.allocator().total());
    }
}

// Each of those that may be what ends the process is alone with its first token.
TEST_P(SchedulerModes, SuspectsBeginOneAfterTheOtherAndOthersBesideThem) {
    Scheduler scheduler(small_limits(GetParam()), {});
    scheduler.allocator().resize(60);
    FakeStepModel model;
    Answers answers;
    std::set<std::string> computed;
    for (const std::string id : {"s1", "good", "s2", "s3"}) {
        GenerationRequest one = request(id, 20, 6);
        one.is_suspect = id != "good";
        one.on_work = [&computed, id](bool begins) {
            begins ? (void)computed.insert(id) : (void)computed.erase(id);
        };
        scheduler.add(one, answers.callback());
    }
    bool beside = false;
    while (!scheduler.idle()) {
        ASSERT_TRUE(scheduler.step(model, {}));
        size_t without = 0;
        for (const std::string id : {"s1", "s2", "s3"})
            without += computed.contains(id) && answers.tokens[id].empty() ? 1 : 0;
        EXPECT_LE(without, 1U);
        beside = beside || (computed.contains("good") && !answers.last.contains("good") &&
                            computed.contains("s2"));
    }
    EXPECT_TRUE(beside) << "one that is none waits for nobody";
    for (const std::string id : {"s1", "good", "s2", "s3"})
        EXPECT_EQ(answers.tokens[id], FakeStepModel::expected(request(id, 20, 6).prompt, 6)) << id;
}

TEST_P(SchedulerModes, AnAbandonedStepChangesNothing) {
    Scheduler scheduler(small_limits(GetParam()), {});
    scheduler.allocator().resize(40);
    FakeStepModel model;
    Answers answers;
    const GenerationRequest one = request("a", 19, 12);
    scheduler.add(one, answers.callback());
    for (int round = 0; !scheduler.idle(); ++round) {
        ASSERT_LT(round, 200);
        const auto given_up = scheduler.step(model, [](uint32_t layer) { return layer < 2; });
        ASSERT_EQ(given_up.value(), Outcome::kAbandoned);
        ASSERT_EQ(scheduler.step(model, {}).value(), Outcome::kStepped);
    }
    EXPECT_EQ(answers.tokens["a"], FakeStepModel::expected(one.prompt, 12));
}

TEST(Scheduler, SendsTheYoungestBackWhenBlocksRunOut) {
    Scheduler scheduler(small_limits(), {});
    scheduler.allocator().resize(8); // 32 tokens for 2 x 24
    FakeStepModel model;
    Answers answers;
    scheduler.add(request("old", 8, 16), answers.callback());
    scheduler.add(request("young", 8, 16), answers.callback());
    while (!answers.last.contains("old"))
        ASSERT_TRUE(scheduler.step(model, {}));
    EXPECT_GE(scheduler.counts().preemptions, 1U);
    EXPECT_FALSE(answers.last.contains("young"));
    run(scheduler, model);
    EXPECT_EQ(answers.tokens["young"], FakeStepModel::expected(request("young", 8, 16).prompt, 16));
}

TEST(Scheduler, ALongPromptDoesNotStopThoseWhoDecode) {
    Scheduler scheduler(small_limits(), {});
    scheduler.allocator().resize(100);
    FakeStepModel model;
    Answers answers;
    scheduler.add(request("decodes", 4, 40), answers.callback());
    ASSERT_TRUE(scheduler.step(model, {}));
    scheduler.add(request("long", 80, 2), answers.callback());
    for (size_t round = 1; round <= 10; ++round) {
        ASSERT_TRUE(scheduler.step(model, {}));
        EXPECT_EQ(answers.tokens["decodes"].size(), round + 1);
        EXPECT_EQ(model.prefilled_last, 8U);
    }
    ASSERT_TRUE(scheduler.step(model, {}));
    EXPECT_EQ(answers.tokens["long"].size(), 2U);
}

TEST(Scheduler, StopsAtEndTokensUnlessToldToIgnoreThem) {
    const GenerationRequest base = request("a", 5, 20);
    const int32_t third = FakeStepModel::expected(base.prompt, 3).back();
    for (const bool ignore : {false, true}) {
        Scheduler scheduler(small_limits(), {third});
        scheduler.allocator().resize(40);
        FakeStepModel model;
        Answers answers;
        GenerationRequest one = base;
        one.ignore_eos = ignore;
        scheduler.add(one, answers.callback());
        run(scheduler, model);
        EXPECT_EQ(answers.tokens["a"].size(), ignore ? 20U : 3U);
        EXPECT_EQ(answers.last["a"].finish_reason,
                  ignore ? FinishReason::kLength : FinishReason::kStop);
    }
}

TEST(Scheduler, CancelEndsWaitingAndRunningRequests) {
    Scheduler scheduler(small_limits(), {});
    scheduler.allocator().resize(10);
    FakeStepModel model;
    Answers answers;
    for (const char* id : {"a", "b", "c", "d", "e"})
        scheduler.add(request(id, 4, 30), answers.callback());
    ASSERT_TRUE(scheduler.step(model, {}));
    scheduler.cancel("a");
    scheduler.cancel("e");
    scheduler.cancel("nobody");
    EXPECT_EQ(answers.last["a"].finish_reason, FinishReason::kCancelled);
    EXPECT_EQ(answers.last["e"].finish_reason, FinishReason::kCancelled);
    run(scheduler, model);
    EXPECT_EQ(answers.tokens["d"], FakeStepModel::expected(request("d", 4, 30).prompt, 30));
    EXPECT_EQ(scheduler.allocator().free(), 10U);
}

TEST(Scheduler, AFailedStepEndsItsRequestsAlone) {
    Scheduler scheduler({1, 8, FakeStepModel::kBlockTokens, false}, {});
    scheduler.allocator().resize(40);
    FakeStepModel model;
    Answers answers;
    scheduler.add(request("a", 4, 5), answers.callback());
    scheduler.add(request("b", 4, 5), answers.callback());
    model.fail_next = true;
    EXPECT_FALSE(scheduler.step(model, {}));
    EXPECT_EQ(answers.last["a"].finish_reason, FinishReason::kError);
    EXPECT_EQ(answers.last["a"].error->message, "told to fail");
    run(scheduler, model);
    EXPECT_EQ(answers.last["b"].finish_reason, FinishReason::kLength);
}

TEST(Scheduler, WhatAllBlocksCannotHoldWaitsForMoreAndKeepsNobodyFromRunning) {
    Scheduler scheduler(small_limits(), {});
    scheduler.allocator().resize(3); // 12 tokens
    FakeStepModel model;
    Answers answers;
    scheduler.add(request("big", 13, 3), answers.callback());
    scheduler.add(request("grows too big", 9, 9), answers.callback());
    scheduler.add(request("fits", 9, 3), answers.callback());
    while (*scheduler.step(model, {}) != Outcome::kIdle) {
    }
    EXPECT_EQ(answers.tokens["fits"], FakeStepModel::expected(request("fits", 9, 3).prompt, 3));
    EXPECT_EQ(scheduler.waiting_count(), 2U);
    EXPECT_EQ(scheduler.allocator().free(), 3U);
    EXPECT_FALSE(answers.tokens.contains("big"));
    EXPECT_LT(answers.tokens["grows too big"].size(), 9U);
    const uint64_t steps = model.steps;
    EXPECT_EQ(*scheduler.step(model, {}), Outcome::kIdle);
    EXPECT_EQ(model.steps, steps) << "it computes what it cannot finish";
    scheduler.allocator().resize(5);
    run(scheduler, model);
    for (const auto& [id, prompt, count] :
         {std::tuple("big", 13, 3), std::tuple("grows too big", 9, 9)})
        EXPECT_EQ(answers.tokens[id],
                  FakeStepModel::expected(request(id, static_cast<size_t>(prompt), 1).prompt,
                                          static_cast<uint32_t>(count)));
}

} // namespace
} // namespace berth::engine
