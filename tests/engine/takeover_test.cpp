// SPDX-License-Identifier: Apache-2.0
// Goal: an engine goes on with another's requests as that one would have, serves and hands over as
// berthd commands, and shows a step that takes long. Method: a real (tiny) decoder; the test plays
// berthd and the socket's side.
#include "base/http/server.h"
#include "tests/engine/running_engine.h"

namespace berth::engine {
namespace {

// Notes what it was told, in order.
class NotedSocket final : public SocketSide {
  public:
    Status serve(uint64_t generation) override {
        note("serve " + std::to_string(generation));
        if (generation == 3)
            return fail(ErrorCode::kFailedPrecondition, "told to refuse", "Fenced");
        return {};
    }
    void leave(http::Leave what) override {
        note("leave " + std::to_string(static_cast<int>(what)));
    }
    size_t unfinished() override { return open; }
    void note(const std::string& what) {
        const std::lock_guard lock(mutex_);
        said_.push_back(what);
    }
    std::vector<std::string> said() const {
        const std::lock_guard lock(mutex_);
        return said_;
    }

    std::atomic<size_t> open{0};

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> said_;
};

const std::string kLeavesRequests = "leave 3";

// A request is under way, whose end the socket's side notes.
bool begin_noted(RunningEngine& engine, NotedSocket& socket) {
    const Status accepted =
        engine.engine().submit(test_request(1, 200), [&socket](const TokenEvent& event) {
            if (event.finished)
                socket.note("ended " + std::string(to_string(event.finish_reason)));
        });
    return accepted && engine.host.await_tokens(3);
}

TEST(TakeOver, ARequestGoesOnBehindWhatAnotherEngineGaveWhereverThatEnded) {
    const auto whole = undisturbed();
    for (const uint32_t given : {1U, 2U, 15U, 16U, 17U, kTokens - 1}) {
        RunningEngine engine;
        for (int number = 0; number < 4; ++number) {
            GenerationRequest request = test_request(number);
            const std::vector<int32_t>& answer = whole.at(request.id);
            request.generated.assign(answer.begin(), answer.begin() + given);
            engine.submit(std::move(request));
        }
        ASSERT_TRUE(engine.host.await_tokens(4 * (kTokens - given)));
        engine.stop();
        for (const auto& [id, tokens] : engine.answers) {
            const std::vector<int32_t> rest(whole.at(id).begin() + given, whole.at(id).end());
            EXPECT_EQ(tokens, rest) << id << " after " << given;
            EXPECT_EQ(engine.last.at(id).finish_reason, FinishReason::kLength);
            EXPECT_EQ(engine.last.at(id).index, kTokens - 1);
        }
        EXPECT_EQ(engine.answers.size(), 4U);
    }
}

// It is computed in several steps before its next token comes.
TEST(TakeOver, OthersHaveNoTurnBeforeTheNextTokenOfARequestThatGoesOn) {
    constexpr uint32_t kGiven = 15;
    RunningEngine engine;
    GenerationRequest request = test_request(3);
    const std::vector<int32_t> answer = undisturbed().at(request.id);
    request.generated.assign(answer.begin(), answer.begin() + kGiven);
    engine.submit(std::move(request));
    ASSERT_TRUE(engine.host.await_tokens(kTokens - kGiven));
    engine.stop();
    EXPECT_EQ(engine.host.steps_told, kTokens - kGiven - 1);
    ASSERT_FALSE(engine.host.progress.empty());
    EXPECT_EQ(engine.host.progress.front().first, 0U) << "its tokens here are counted";
}

TEST(TakeOver, WhatCannotHaveBeenGivenIsRefused) {
    RunningEngine engine;
    const auto refuses = [&](std::vector<int32_t> generated) {
        GenerationRequest request = test_request(1);
        request.generated = std::move(generated);
        const Status done = engine.engine().submit(request, [](const TokenEvent&) {});
        return !done && done.error().reason == "BadGenerated";
    };
    EXPECT_TRUE(refuses(std::vector<int32_t>(kTokens, 1))) << "all of it, and it had not ended";
    EXPECT_TRUE(refuses({1, -1}));
    EXPECT_TRUE(refuses({static_cast<int32_t>(tiny_config().vocab)}));
    EXPECT_FALSE(refuses({1, 2}));
}

TEST(TakeOver, ServeIsTheSocketsSideToDoAndItsRefusalIsTheAnswer) {
    NotedSocket socket;
    RunningEngine engine(&socket);
    EXPECT_FALSE(
        engine.host.order_with(CommandKind::kServe, [](Command& c) { c.generation = 2; }).error);
    EXPECT_EQ(engine.host.serving, 2U);
    const CommandDone refused =
        engine.host.order_with(CommandKind::kServe, [](Command& c) { c.generation = 3; });
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->reason, "Fenced");
    EXPECT_EQ(engine.host.serving, 2U) << "it serves as before";
    EXPECT_EQ(socket.said(), (std::vector<std::string>{"serve 2", "serve 3"}));
}

TEST(TakeOver, AnEngineWithoutASocketRefusesToServeInWords) {
    RunningEngine engine;
    const CommandDone done =
        engine.host.order_with(CommandKind::kServe, [](Command& c) { c.generation = 1; });
    ASSERT_TRUE(done.error);
    EXPECT_EQ(done.error->reason, "NoSocket");
}

TEST(TakeOver, AHandOverLeavesBeforeItCancels) {
    NotedSocket socket;
    RunningEngine engine(&socket);
    ASSERT_TRUE(begin_noted(engine, socket));
    const CommandDone done = engine.host.order_with(CommandKind::kStop, [](Command& c) {
        c.grace_ms = 0;
        c.hand_over = true;
    });
    EXPECT_FALSE(done.error);
    engine.join();
    EXPECT_EQ(socket.said(),
              (std::vector<std::string>{kLeavesRequests, kLeavesRequests, "ended cancelled"}));
}

TEST(TakeOver, APlainStopLeavesTheListenerToTheNextProcessAndEndsWhatIsInFlight) {
    NotedSocket socket;
    RunningEngine engine(&socket);
    ASSERT_TRUE(begin_noted(engine, socket));
    EXPECT_FALSE(
        engine.host.order_with(CommandKind::kStop, [](Command& c) { c.grace_ms = 0; }).error);
    engine.join();
    EXPECT_EQ(socket.said(), (std::vector<std::string>{"leave 2", "ended cancelled"}));
}

TEST(TakeOver, WhoeverIsEndedBySomebodyElseThanBerthdLeavesWhatIsInFlight) {
    NotedSocket socket;
    RunningEngine engine(&socket);
    ASSERT_TRUE(begin_noted(engine, socket));
    engine.stop(); // as a signal does
    EXPECT_EQ(socket.said(),
              (std::vector<std::string>{kLeavesRequests, kLeavesRequests, "ended cancelled"}));
}

TEST(TakeOver, AHandOverWithGraceEndsWithItsLastConnectionAndTakesItsRequests) {
    NotedSocket socket;
    RunningEngine engine(&socket);
    socket.open = 1;
    std::thread order([&] {
        const CommandDone done = engine.host.order_with(CommandKind::kStop, [](Command& c) {
            c.grace_ms = 600'000;
            c.hand_over = true;
            c.leaves = "Connections";
        });
        EXPECT_FALSE(done.error);
    });
    while (socket.said().empty())
        engine.host.let_run(1);
    EXPECT_EQ(socket.said(), std::vector<std::string>{"leave 1"});
    engine.submit(2); // of a connection that ends here
    EXPECT_TRUE(engine.host.await_tokens(2 * kTokens));
    socket.open = 0;
    order.join();
    engine.join();
    const auto whole = undisturbed(2);
    EXPECT_EQ(engine.answers, whole);
}

TEST(TakeOver, OneThatLeavesLateLeavesWhatIsLeftAtItsEnd) {
    NotedSocket socket;
    RunningEngine engine(&socket);
    socket.open = 1; // it never ends
    const CommandDone done = engine.host.order_with(CommandKind::kStop, [](Command& c) {
        c.grace_ms = 1;
        c.hand_over = true;
        c.leaves = "Late";
    });
    EXPECT_FALSE(done.error);
    engine.join();
    EXPECT_EQ(socket.said(), (std::vector<std::string>{"leave 2", kLeavesRequests}));
}

TEST(TakeOver, EachStepIsBegunAndEnded) {
    RunningEngine engine;
    engine.submit(2);
    (void)engine.finish(2);
    EXPECT_GE(engine.host.steps_begun, kTokens);
    EXPECT_EQ(engine.host.steps_begun, engine.host.steps_ended);
}

// A runner whose next step fails.
class BrokenModel final : public StepModel {
  public:
    explicit BrokenModel(ModelRunner& runner) : runner_(runner) {}
    Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem> items,
                                                          const LayerHook& hook) override {
        if (breaks.exchange(false))
            return fail(ErrorCode::kIo, "told to fail");
        return runner_.step(items, hook);
    }
    std::atomic<bool> breaks{false};

  private:
    ModelRunner& runner_;
};

// A request whose step fails, on a device that computes on, or on one that does not.
class FailedStep : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Device, FailedStep, ::testing::Bool());

TEST_P(FailedStep, EndsItsRequestsUnlessTheDeviceIsGoneAndASuccessorMayTryThem) {
    const bool device_is_gone = GetParam();
    TestParts parts;
    BrokenModel model(*parts.runner);
    FakeHost host;
    NotedSocket socket;
    EngineSettings settings;
    settings.vocab = tiny_config().vocab;
    settings.max_context = 256;
    settings.capacity_blocks = parts.memory->blocks_within(parts.grant);
    Engine engine(settings, Engine::Parts{host, *parts.scheduler, model, *parts.memory});
    engine.use(socket);
    ASSERT_TRUE(engine.submit(test_request(1), [&](const TokenEvent& event) {
        if (event.finished)
            socket.note("ended " + std::string(to_string(event.finish_reason)));
    }));
    if (device_is_gone)
        parts.weights.layers[1].up.weight.mul_(2); // its canary is another now
    model.breaks = true;
    Status ended;
    std::thread thread([&] { ended = engine.run(); });
    if (!device_is_gone) {
        while (socket.said().empty())
            host.let_run(1);
        engine.request_stop(Nanoseconds(0));
    }
    thread.join();
    EXPECT_EQ(ended.has_value(), !device_is_gone);
    EXPECT_EQ(socket.said(),
              device_is_gone
                  ? (std::vector<std::string>{kLeavesRequests, "ended error"})
                  : (std::vector<std::string>{"ended error", kLeavesRequests, kLeavesRequests}));
}

} // namespace
} // namespace berth::engine
