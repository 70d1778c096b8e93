// SPDX-License-Identifier: Apache-2.0
// Goal: one that stands by computes a prompt of each of some lengths before anybody waits for it,
// and nobody who waits is delayed or answered otherwise for that. Method: a model that notes what
// it is given; a real (tiny) decoder under the engine's loop, the test plays berthd.
#include "engine_shim/reference/main/rehearsal.h"

#include "tests/engine/fake_step_model.h"
#include "tests/engine/running_engine.h"

namespace berth::engine {
namespace {

struct Rehearsed {
    explicit Rehearsed(uint32_t blocks) {
        scheduler.allocator().resize(blocks);
        rehearsal.emplace(Rehearsal::Parts{model, scheduler, limits, 100, 256});
    }
    // The prompts' lengths, until it is over.
    std::vector<uint64_t> lengths(const LayerHook& hook = {}) {
        std::vector<uint64_t> given;
        for (int n = 0; n < 10 && !rehearsal->is_over(); ++n) {
            model.prefilled_last = 0;
            EXPECT_TRUE(rehearsal->next(hook ? hook : [](uint32_t) { return true; }));
            given.push_back(model.prefilled_last);
        }
        return given;
    }

    FakeStepModel model;
    SchedulerLimits limits{1, 64, FakeStepModel::kBlockTokens, false};
    Scheduler scheduler{limits, {}};
    std::optional<Rehearsal> rehearsal;
};

using Lengths = std::vector<uint64_t>;

TEST(Rehearsal, IsAWholeChunkAQuarterAndASixteenth) {
    EXPECT_EQ(Rehearsed(32).lengths(), (Lengths{64, 16, 4}));
}

TEST(Rehearsal, IsAsLongAsTheGrantHolds) {
    EXPECT_EQ(Rehearsed(6).lengths(), (Lengths{20, 16, 4}));
    Rehearsed one(1); // which is for the token
    EXPECT_EQ(one.lengths(), (Lengths{0, 0, 0}));
    EXPECT_EQ(one.model.steps, 0U);
}

TEST(Rehearsal, WhatIsAbandonedIsBegunAnew) {
    Rehearsed rehearsed(32);
    int layers = 0;
    EXPECT_EQ(rehearsed.lengths([&](uint32_t) { return ++layers != 2; }), (Lengths{64, 64, 16, 4}));
}

TEST(Rehearsal, AFailureOfTheModelEndsIt) {
    Rehearsed rehearsed(32);
    rehearsed.model.fail_next = true;
    EXPECT_FALSE(rehearsed.rehearsal->next([](uint32_t) { return true; }));
    EXPECT_TRUE(rehearsed.rehearsal->is_over());
}

class IdleSocket final : public SocketSide {
  public:
    Status serve(uint64_t) override { return {}; }
    void leave(http::Leave) override {}
    size_t unfinished() override { return 0; }
};

TEST(Rehearsal, OneThatStandsByHasDoneItBeforeItAnswersAndAnswersAsUndisturbed) {
    IdleSocket socket;
    RunningEngine engine(&socket);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (engine.host.steps_ended < 3 && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(engine.host.order(CommandKind::kServe).error);
    engine.submit(4);
    EXPECT_EQ(engine.finish(4), undisturbed());
    EXPECT_TRUE(engine.has_rehearsed());
}

TEST(Rehearsal, OneThatHasServedOrWasGivenNoSocketDoesNone) {
    RunningEngine alone;
    alone.submit(2);
    alone.finish(2);
    EXPECT_FALSE(alone.has_rehearsed());

    IdleSocket socket;
    RunningEngine engine(&socket);
    EXPECT_FALSE(engine.host.order(CommandKind::kServe).error);
    const uint64_t steps = engine.host.steps_begun;
    EXPECT_FALSE(engine.host.order(CommandKind::kPause).error);
    EXPECT_FALSE(engine.host.order(CommandKind::kResume).error);
    EXPECT_EQ(engine.host.steps_begun, steps);
}

TEST(Rehearsal, AnOffloadInItsMiddleIsObeyedAndItGoesOnAfterwards) {
    IdleSocket socket;
    RunningEngine engine(&socket);
    EXPECT_FALSE(engine.host.order(CommandKind::kOffload, 0).error);
    const uint64_t steps = engine.host.steps_begun;
    EXPECT_EQ(engine.host.steps_ended, steps);
    EXPECT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (engine.host.steps_ended < 3 && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine.stop();
    EXPECT_TRUE(engine.has_rehearsed());
}

} // namespace
} // namespace berth::engine
