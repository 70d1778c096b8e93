// SPDX-License-Identifier: Apache-2.0
// Goal: the engine obeys berthd's commands at any moment and its answers do not show it. Method: a
// real (tiny) decoder and grant on the host device; the test plays berthd.
#include "tests/engine/running_engine.h"

namespace berth::engine {
namespace {

class OffloadModes : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kv, OffloadModes, ::testing::Values("Save", "Drop", "Auto"),
                         [](const auto& info) { return info.param; });

TEST_P(OffloadModes, AnswersAreTheSameThroughOffloadsAndRestores) {
    RunningEngine engine;
    engine.submit(4);
    for (uint64_t round = 1; round <= 6; ++round) {
        ASSERT_TRUE(engine.host.await_tokens(round * 16));
        const CommandDone off = engine.host.order(CommandKind::kOffload, 0, GetParam());
        ASSERT_FALSE(off.error) << off.error->message;
        EXPECT_EQ(off.grant_bytes, 0U);
        const EngineStats now = engine.engine().stats();
        if (now.requests_running + now.requests_waiting > 0) // all may have ended by now
            EXPECT_EQ(off.host_bytes > 0, GetParam() != "Drop");
        EXPECT_EQ(now.held, "Offloaded");
        EXPECT_FALSE(engine.engine().stats().ready);
        const uint64_t before = engine.host.tokens();
        EXPECT_FALSE(engine.host.order(CommandKind::kOffload, 0, GetParam()).error);
        EXPECT_EQ(engine.host.tokens(), before) << "it generates while offloaded";
        const CommandDone back = engine.host.order(CommandKind::kRestore, engine.grant);
        ASSERT_FALSE(back.error) << back.error->message;
        EXPECT_EQ(back.grant_bytes, engine.grant);
        EXPECT_EQ(back.host_bytes, off.host_bytes) << "what was pinned stays for the next time";
    }
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, SaysWhatItHasSavedAndWhomOnlyItsGrantKeepsWaiting) {
    RunningEngine engine;
    engine.host.close_gate_at(60);
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_yield(1));
    const CommandDone off = engine.host.order(CommandKind::kOffload);
    ASSERT_FALSE(off.error) << off.error->message;
    EXPECT_GT(off.saved_bytes, 0U);
    EXPECT_EQ(off.saved_bytes % engine.block_bytes(), 0U);
    EXPECT_EQ(engine.host.order(CommandKind::kOffload).saved_bytes, 0U) << "they are saved";
    engine.host.close_gate(false);
    // Four need more than a quarter: some run, others wait for blocks alone.
    ASSERT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant / 4).error);
    EXPECT_TRUE(engine.host.await_load([](const EngineHost::Load& load) {
        return load.running > 0 && load.short_of_memory > 0 && load.short_of_memory <= load.waiting;
    }));
    ASSERT_FALSE(engine.host.order(CommandKind::kGrow, engine.grant).error);
    EXPECT_TRUE(engine.host.await_load(
        [](const EngineHost::Load& load) { return load.short_of_memory == 0; }));
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, WhoWaitsOnlyForAPlaceIsNotShortOfMemory) {
    RunningEngine engine;
    for (int n = 0; n < 12; ++n) { // eight run together
        GenerationRequest request = test_request(0);
        request.id = "r" + std::to_string(n);
        engine.submit(std::move(request));
    }
    EXPECT_TRUE(engine.host.await_load([](const EngineHost::Load& load) {
        EXPECT_EQ(load.short_of_memory, 0U);
        return load.running == 8 && load.waiting > 0;
    }));
}

TEST(Engine, LooksAtEachStepForHowLongAFirstTokenIsAwaited) {
    RunningEngine engine;
    const auto begun = Engine::Clock::now() - std::chrono::seconds(9);
    engine.engine().on_awaited(begun);
    engine.engine().on_awaited(begun + std::chrono::seconds(5));
    const auto told = [&](std::chrono::seconds least, std::chrono::seconds most) {
        const auto end = Engine::Clock::now() + std::chrono::seconds(60);
        while (Engine::Clock::now() < end) {
            const Nanoseconds now(engine.host.awaited.load());
            if (now >= least && now < most)
                return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return false;
    };
    EXPECT_TRUE(told(std::chrono::seconds(9), std::chrono::hours(1)));
    engine.engine().on_first_token(begun, 9);
    EXPECT_TRUE(told(std::chrono::seconds(4), std::chrono::seconds(9)));
    engine.engine().on_none_awaited(begun + std::chrono::seconds(5));
    EXPECT_TRUE(told(std::chrono::seconds(0), std::chrono::seconds(1)));
}

TEST(Engine, ASmallerGrantRecomputesWhatDoesNotFit) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(60));
    ASSERT_FALSE(engine.host.order(CommandKind::kOffload).error);
    const CommandDone back = engine.host.order(CommandKind::kRestore, engine.grant / 4);
    ASSERT_FALSE(back.error) << back.error->message;
    EXPECT_LE(back.grant_bytes, engine.grant / 4);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, ARestoreIntoAGrantWithoutRoomIsRefusedAndLosesNothing) {
    RunningEngine engine;
    engine.host.close_gate_at(30);
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_yield(1));
    ASSERT_FALSE(engine.host.order(CommandKind::kOffload).error);
    engine.host.close_gate(false);
    const CommandDone refused = engine.host.order(CommandKind::kRestore, 4096);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->reason, "GrantTooSmall");
    EXPECT_EQ(refused.grant_bytes, 0U);
    EXPECT_GT(refused.host_bytes, 0U);
    ASSERT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, ARestoreWhoseCanaryDiffersStaysOffloadedAndLosesNothing) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(30));
    ASSERT_FALSE(engine.host.order(CommandKind::kOffload).error);
    engine.spoil_weights();
    const CommandDone refused = engine.host.order(CommandKind::kRestore, engine.grant);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->reason, "CanaryMismatch");
    EXPECT_EQ(refused.grant_bytes, 0U);
    EXPECT_EQ(engine.engine().stats().held, "Offloaded");
    engine.mend_weights();
    ASSERT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Engine, AClosedGateStopsItBetweenLayersAndChangesNothing) {
    RunningEngine engine;
    engine.host.close_gate_at(12);
    engine.submit(4);
    for (int round = 1; round <= 5; ++round) {
        ASSERT_TRUE(engine.host.await_yield(round));
        const uint64_t before = engine.host.tokens();
        std::this_thread::yield();
        EXPECT_EQ(engine.host.tokens(), before);
        if (round < 5)
            engine.host.close_gate_at(static_cast<uint64_t>(round + 1) * 12);
        engine.host.close_gate(false);
    }
    EXPECT_EQ(engine.finish(4), undisturbed());
    EXPECT_GE(engine.engine().stats().gate_pauses, 5U);
}

TEST(Engine, ACommandReachesItWhileTheGateIsClosed) {
    RunningEngine engine;
    engine.host.close_gate_at(10);
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_yield(1));
    EXPECT_FALSE(engine.host.order(CommandKind::kOffload).error);
    EXPECT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    engine.host.close_gate(false);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

// Its prompt takes three steps, the last of which gives the first token; after the last one nothing
// is left to be done.
TEST(Engine, OthersMayHaveTheirTurnAfterEachTokenButNotBeforeTheFirst) {
    RunningEngine engine;
    engine.submit(test_request(5));
    EXPECT_TRUE(engine.host.await_tokens(kTokens));
    engine.stop();
    EXPECT_EQ(engine.host.steps_told, kTokens - 1);
}

TEST(Engine, BeforeATurnEachAnswerUnderWayTellsHowFarItIs) {
    RunningEngine engine;
    engine.submit(test_request(5));
    EXPECT_TRUE(engine.host.await_tokens(kTokens));
    engine.stop();
    ASSERT_EQ(engine.host.progress.size(), kTokens - 1);
    for (uint64_t n = 0; n < engine.host.progress.size(); ++n) {
        EXPECT_EQ(engine.host.progress[n].first, n) << "tokens after its first";
        EXPECT_GE(engine.host.progress[n].second.count(), n == 0 ? 0 : 1);
    }
}

TEST(Engine, StopEndsRequestsAsCancelledNotAsAnswered) {
    RunningEngine engine(/*drain=*/false);
    engine.host.close_gate_at(10);
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_yield(1));
    EXPECT_FALSE(engine.host.order(CommandKind::kStop).error);
    engine.join();
    EXPECT_TRUE(engine.ended);
    ASSERT_EQ(engine.last.size(), 4U);
    for (const auto& [id, event] : engine.last) {
        EXPECT_EQ(event.finish_reason, FinishReason::kCancelled);
        EXPECT_EQ(event.error->code, ErrorCode::kUnavailable);
    }
    GenerationRequest late;
    late.prompt = {1};
    EXPECT_EQ(engine.engine().submit(late, {}).error().code, ErrorCode::kUnavailable);
}

TEST(Engine, RefusesRequestsThatCannotBeServed) {
    RunningEngine engine;
    const auto reason = [&](auto change) {
        GenerationRequest request;
        request.prompt = {1, 2, 3};
        change(request);
        const Status status = engine.engine().submit(request, [](const TokenEvent&) {});
        return status ? std::string("accepted") : status.error().reason;
    };
    EXPECT_EQ(reason([](auto&) {}), "accepted");
    EXPECT_EQ(reason([](auto& r) { r.prompt.clear(); }), "EmptyPrompt");
    EXPECT_EQ(reason([](auto& r) { r.prompt[1] = 331; }), "BadToken");
    EXPECT_EQ(reason([](auto& r) { r.prompt[1] = -1; }), "BadToken");
    EXPECT_EQ(reason([](auto& r) { r.max_new_tokens = 254; }), "ContextTooLong");
    EXPECT_EQ(reason([](auto& r) { r.max_new_tokens = 0; }), "BadMaxTokens");
    EXPECT_EQ(reason([](auto& r) { r.temperature = -0.5F; }), "BadTemperature");
    EXPECT_EQ(reason([](auto& r) { r.top_p = 0; }), "BadTopP");
    EXPECT_EQ(reason([](auto& r) { r.top_k = -1; }), "BadTopK");
}

} // namespace
} // namespace berth::engine
