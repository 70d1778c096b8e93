// SPDX-License-Identifier: Apache-2.0
// Goal: a grant shrinks and grows under an engine that generates, and neither its answers nor the
// system's figure of what it holds are ever wrong. Method: a tiny decoder on host memory that can
// be told to refuse; the test plays berthd, with seeds, and reads /proc/self/maps as berthd would.
#include "base/units.h"
#include "cache/memory/host_meter.h"
#include "tests/engine/running_engine.h"

#include <gmock/gmock.h>

#include <cstring>
#include <random>
#include <unistd.h>

namespace berth::engine {
namespace {

using ::testing::HasSubstr;

// What this process holds as grant, by the system's word. One engine lives at a time.
uint64_t mapped_grant() {
    return host_usage(::getpid()).value().grant_bytes;
}

void expect_grant(RunningEngine& engine, const CommandDone& done) {
    EXPECT_EQ(done.grant_bytes, mapped_grant());
    EXPECT_EQ(done.grant_bytes, engine.host.reported_grant());
}

struct Case {
    std::string kv;
    uint32_t seed;
};
class RandomSizes : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Kv, RandomSizes,
                         ::testing::Values(Case{"Save", 1}, Case{"Save", 2}, Case{"Save", 3},
                                           Case{"Drop", 4}, Case{"Drop", 5}, Case{"Auto", 6}),
                         [](const auto& info) {
                             return info.param.kv + std::to_string(info.param.seed);
                         });

TEST_P(RandomSizes, AnswersAreTheSameAndTheFigureIsTheSystems) {
    const auto wanted = undisturbed(8);
    std::mt19937 random(GetParam().seed);
    RunningEngine engine;
    engine.submit(8);
    int shrunk = 0;
    uint64_t saved = 0;
    for (int round = 0; round < 60; ++round) {
        engine.host.let_run(random() % 8);
        const uint64_t now = mapped_grant();
        const uint64_t goal = random() % (engine.grant + 1);
        const CommandKind kind = goal < now ? CommandKind::kShrink : CommandKind::kGrow;
        const CommandDone done = engine.host.order(kind, goal, GetParam().kv);
        expect_grant(engine, done);
        saved += done.saved_bytes;
        if (done.error) {
            EXPECT_EQ(done.error->reason, "GrantTooSmall") << done.error->message;
            EXPECT_EQ(done.grant_bytes, now) << "a refusal changes nothing";
            continue;
        }
        EXPECT_EQ(done.grant_bytes, goal / 4096 * 4096);
        shrunk += kind == CommandKind::kShrink ? 1 : 0;
        if (random() % 4 == 0) // said twice is said once
            EXPECT_EQ(engine.host.order(kind, goal, GetParam().kv).grant_bytes, done.grant_bytes);
    }
    EXPECT_GT(shrunk, 3);
    if (GetParam().kv != "Auto")
        EXPECT_EQ(saved > 0, GetParam().kv == "Save");
    const CommandDone full = engine.host.order(CommandKind::kGrow, engine.grant);
    EXPECT_FALSE(full.error);
    expect_grant(engine, full);
    EXPECT_EQ(engine.finish(8), wanted);
    EXPECT_EQ(engine.last.size(), 8U);
    for (const auto& [id, event] : engine.last)
        EXPECT_EQ(event.finish_reason, FinishReason::kLength) << id;
}

TEST(Shrink, MovesLiveBlocksDownAndUnmapsBehindAFence) {
    TestParts parts;
    std::map<std::string, std::vector<int32_t>> answers;
    for (int i = 0; i < 8; ++i)
        parts.scheduler->add(test_request(i, i < 4 ? 4 : kTokens), [&](const TokenEvent& event) {
            answers[event.id].push_back(event.token);
        });
    const auto step = [&] { ASSERT_TRUE(parts.scheduler->step(*parts.runner, {})); };
    while (parts.scheduler->counts().requests_done < 4)
        step();
    uint32_t live = 0, top = 0;
    for (const Sequence& sequence : parts.scheduler->running())
        for (const uint32_t block : sequence.blocks) {
            ++live;
            top = std::max(top, block);
        }
    const uint32_t limit = live + 8; // one to spare for each that could run
    ASSERT_GT(top, limit);
    Command command;
    command.grant_bytes = limit * parts.block_bytes;
    CommandDone done;
    parts.device->deeds.clear();
    ASSERT_TRUE(parts.memory->shrink(command, done));
    EXPECT_TRUE(done.phases.contains("move"));
    EXPECT_EQ(parts.device->deeds.find('c'), std::string::npos) << "there was room for all";
    EXPECT_THAT(parts.device->deeds, HasSubstr("fu"));
    EXPECT_EQ(parts.memory->grant_bytes(), command.grant_bytes);
    EXPECT_EQ(parts.memory->grant_bytes(), mapped_grant());
    EXPECT_EQ(parts.scheduler->running_count(), 4U);
    while (!parts.scheduler->idle())
        step();
    auto wanted = undisturbed(8);
    for (int i = 0; i < 4; ++i)
        wanted["r" + std::to_string(i)].resize(4);
    EXPECT_EQ(answers, wanted);
}

TEST(Shrink, SaysHowMuchItHasMoved) {
    RunningEngine engine;
    engine.host.close_gate(true); // all eight have come when the first of them begins
    for (int i = 0; i < 8; ++i)
        engine.submit(test_request(i, i < 4 ? 4 : 100));
    ASSERT_TRUE(engine.host.await_yield(1));
    engine.host.close_gate_when(
        [](const EngineHost::Load& load) { return load.done >= 4 && load.running == 4; });
    engine.host.close_gate(false);
    ASSERT_TRUE(engine.host.await_yield(2));
    const EngineStats now = engine.engine().stats();
    const uint64_t live = now.blocks_total - now.blocks_free;
    const CommandDone done =
        engine.host.order(CommandKind::kShrink, (live + 4) * engine.block_bytes());
    ASSERT_FALSE(done.error) << done.error->message;
    EXPECT_GT(done.moved_bytes, 0U);
    EXPECT_EQ(done.moved_bytes % engine.block_bytes(), 0U);
    EXPECT_EQ(engine.host.order(CommandKind::kGrow, engine.grant).moved_bytes, 0U);
    engine.host.close_gate(false);
}

TEST(Shrink, BelowTheLeastIsRefusedWithTheLeastWhichThenIsTaken) {
    RunningEngine engine;
    engine.host.close_gate_at(20);
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_yield(1));
    const CommandDone refused = engine.host.order(CommandKind::kShrink, 100);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->reason, "GrantTooSmall");
    EXPECT_EQ(refused.grant_bytes, engine.grant);
    const std::string& text = refused.error->message;
    const size_t at = text.find("the least is ");
    ASSERT_NE(at, std::string::npos) << text;
    const uint64_t least = parse_bytes(text.substr(at + std::strlen("the least is "))).value();
    const CommandDone below = engine.host.order(CommandKind::kShrink, least - 1);
    EXPECT_TRUE(below.error);
    const CommandDone taken = engine.host.order(CommandKind::kShrink, least);
    ASSERT_FALSE(taken.error) << taken.error->message;
    EXPECT_EQ(taken.grant_bytes, least);
    EXPECT_EQ(mapped_grant(), least);
    const uint64_t before = engine.host.tokens();
    engine.host.close_gate(false);
    EXPECT_TRUE(engine.host.await_tokens(before + 1)) << "it does not get on";
    EXPECT_FALSE(engine.host.order(CommandKind::kGrow, engine.grant).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Shrink, WorksWhilePausedAndLeavesItPaused) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(20));
    ASSERT_FALSE(engine.host.order(CommandKind::kPause).error);
    const uint64_t before = engine.host.tokens();
    const CommandDone smaller = engine.host.order(CommandKind::kShrink, engine.grant / 3);
    ASSERT_FALSE(smaller.error) << smaller.error->message;
    expect_grant(engine, smaller);
    const CommandDone larger = engine.host.order(CommandKind::kGrow, engine.grant / 2);
    ASSERT_FALSE(larger.error) << larger.error->message;
    expect_grant(engine, larger);
    EXPECT_EQ(engine.engine().stats().held, "Paused");
    EXPECT_EQ(engine.host.tokens(), before);
    ASSERT_FALSE(engine.host.order(CommandKind::kResume).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Shrink, WorksWhileOffloadedButGrowIsRefused) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(20));
    const CommandDone off = engine.host.order(CommandKind::kOffload, engine.grant / 2);
    ASSERT_FALSE(off.error);
    EXPECT_EQ(off.grant_bytes, engine.grant / 2 / 4096 * 4096);
    const CommandDone less = engine.host.order(CommandKind::kShrink, 4096);
    ASSERT_FALSE(less.error);
    EXPECT_EQ(less.grant_bytes, 4096U);
    EXPECT_EQ(mapped_grant(), 4096U);
    const CommandDone refused = engine.host.order(CommandKind::kGrow, engine.grant);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->reason, "Offloaded");
    ASSERT_FALSE(engine.host.order(CommandKind::kRestore, engine.grant).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Grow, ThatTheDeviceRefusesSaysSoAndChangesNothing) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(20));
    const CommandDone smaller = engine.host.order(CommandKind::kShrink, engine.grant / 2);
    ASSERT_FALSE(smaller.error);
    engine.device().refuse_growth = true;
    const CommandDone refused = engine.host.order(CommandKind::kGrow, engine.grant);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(refused.error->message, HasSubstr("told to refuse growth"));
    EXPECT_EQ(refused.grant_bytes, smaller.grant_bytes);
    expect_grant(engine, refused);
    engine.device().refuse_growth = false;
    EXPECT_FALSE(engine.host.order(CommandKind::kGrow, engine.grant).error);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(Shrink, ThatTheDeviceRefusesLosesNothing) {
    RunningEngine engine;
    engine.submit(4);
    ASSERT_TRUE(engine.host.await_tokens(20));
    engine.device().refuse_unmapping = true;
    const CommandDone refused = engine.host.order(CommandKind::kShrink, engine.grant / 4);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.grant_bytes, engine.grant);
    EXPECT_EQ(engine.engine().stats().blocks_total, kBlocks);
    engine.device().refuse_unmapping = false;
    ASSERT_FALSE(engine.host.order(CommandKind::kShrink, engine.grant / 4).error);
    EXPECT_EQ(mapped_grant(), engine.grant / 4 / 4096 * 4096);
    EXPECT_EQ(engine.finish(4), undisturbed());
}

TEST(HostMemory, StaysWithinItsBoundAndIsUsedAgain) {
    constexpr uint64_t kBound = 12; // blocks
    RunningEngine engine(true, kBound);
    engine.host.close_gate_at(30);
    engine.submit(8);
    ASSERT_TRUE(engine.host.await_yield(1));
    uint64_t held = 0;
    for (uint64_t round = 1; round <= 4; ++round) {
        ASSERT_TRUE(engine.host.await_tokens(round * 30));
        const CommandDone off = engine.host.order(CommandKind::kOffload, 0, "Save");
        ASSERT_FALSE(off.error) << off.error->message;
        engine.host.close_gate(false);
        EXPECT_GT(off.host_bytes, 0U);
        EXPECT_LE(off.host_bytes, kBound * engine.block_bytes());
        EXPECT_GE(off.host_bytes, held);
        held = off.host_bytes;
        const CommandDone back = engine.host.order(CommandKind::kRestore, engine.grant);
        ASSERT_FALSE(back.error);
        EXPECT_EQ(back.host_bytes, held);
    }
    EXPECT_EQ(engine.finish(8), undisturbed(8));
}

TEST(HostMemory, ThatIsRefusedMeansRecomputing) {
    RunningEngine engine;
    engine.submit(8);
    engine.device().refuse_host_buffers = true;
    ASSERT_TRUE(engine.host.await_tokens(40));
    const CommandDone smaller = engine.host.order(CommandKind::kShrink, engine.grant / 4, "Save");
    ASSERT_FALSE(smaller.error) << smaller.error->message;
    EXPECT_EQ(smaller.host_bytes, 0U);
    EXPECT_EQ(engine.finish(8), undisturbed(8));
}

TEST(Shrink, ARequestThatIsTooLargeForWhatIsLeftWaitsForTheGrantToGrow) {
    RunningEngine engine;
    ASSERT_FALSE(engine.host.order(CommandKind::kShrink, 4 * engine.block_bytes()).error);
    engine.submit(8); // r0 fits, r7 alone has 83 tokens of prompt
    ASSERT_TRUE(engine.host.await_tokens(kTokens));
    ASSERT_FALSE(engine.host.order(CommandKind::kGrow, engine.grant).error);
    EXPECT_EQ(engine.finish(8), undisturbed(8));
}

TEST(HostMemory, OfACancelledRequestIsFreeForTheNext) {
    TestParts parts;
    int ended = 0;
    for (int i = 0; i < 2; ++i)
        parts.scheduler->add(test_request(i),
                             [&](const TokenEvent& event) { ended += event.finished ? 1 : 0; });
    for (int i = 0; i < 6; ++i)
        ASSERT_TRUE(parts.scheduler->step(*parts.runner, {}));
    Command command;
    command.kv = "Save";
    CommandDone done;
    ASSERT_TRUE(parts.memory->offload(command, done));
    const uint64_t held = parts.memory->host_bytes();
    EXPECT_GT(held, 0U);
    parts.scheduler->cancel("r0");
    parts.scheduler->cancel("r1");
    EXPECT_EQ(ended, 2);
    EXPECT_EQ(parts.memory->host_bytes(), held);
    EXPECT_EQ(parts.memory->host_bytes_free(), held);
}

} // namespace
} // namespace berth::engine
