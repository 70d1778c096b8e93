// SPDX-License-Identifier: Apache-2.0
// Rank 0 and one that follows it, between steps: commands that all must have, a Pause that holds
// all, and changes of memory that are made everywhere or nowhere.
#include "engine_shim/reference/ranks/lead_model.h"
#include "engine_shim/reference/ranks/own_work.h"
#include "engine_shim/reference/ranks/ranked_host.h"
#include "tests/ranks/rank_fakes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace berth::engine {
namespace {

using protocol::CommandKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Nanoseconds kPatience = std::chrono::seconds(60);
constexpr Nanoseconds kLong = std::chrono::minutes(10);
constexpr Nanoseconds kShort = std::chrono::milliseconds(50);
constexpr Nanoseconds kMoment = std::chrono::milliseconds(30);

// Rank 0's part of a step: stands still where the test says so.
class StandingModel final : public StepModel {
  public:
    Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem>,
                                                          const LayerHook& hook) override {
        if (stands && !hook(1))
            return std::nullopt;
        return std::vector<SampledToken>(1);
    }
    std::atomic<bool> stands{false};
};

class Lockstep : public ::testing::Test {
  protected:
    void start(Nanoseconds lead_wait, Nanoseconds follower_wait) {
        auto other = std::async(std::launch::async, [this] {
            return RankLinks::meet({1, 2, "the same", "host-1"}, store_, kPatience, {});
        });
        auto own = RankLinks::meet({0, 2, "the same", "host-0"}, store_, kPatience, {});
        auto theirs = other.get();
        ASSERT_TRUE(own && theirs);
        own_links_ = std::move(*own);
        other_links_ = std::move(*theirs);
        lead_.emplace(*own_links_);
        host_.emplace(own_host_, *lead_, lead_wait);
        calls_.emplace(*lead_, [this] { own_host_.notify(); }, [this] { end_asked_ = true; });
        model_.emplace(*lead_, standing_);
        follower_.emplace(Follower::Parts{*other_links_, other_host_, work_}, follower_wait);
        follower_->on_loop([this] { loops_ = true; });
        thread_ = std::thread([this] { ended_ = follower_->run(); });
    }

    void TearDown() override {
        if (!thread_.joinable())
            return;
        lead_->end();
        thread_.join();
        EXPECT_TRUE(ended_) << ended_.error().message;
    }

    // Rank 0's loop, until it is given a command.
    std::optional<protocol::Command> next_command(Nanoseconds patience = kPatience) {
        const auto until = std::chrono::steady_clock::now() + patience;
        while (std::chrono::steady_clock::now() < until) {
            if (auto command = host_->next_command())
                return command;
            host_->wait(kMoment);
        }
        return std::nullopt;
    }
    void complete(const protocol::Command& command) {
        protocol::CommandDone done;
        done.id = command.id;
        host_->complete(done);
    }
    // Whether a step was made; false: it was given up, or none may begin.
    bool step() {
        StepItem item;
        const auto made = model_->step(std::span(&item, 1), [this](uint32_t) {
            return !host_->must_yield() || host_->yield_here();
        });
        return made && made->has_value();
    }

    MemoryStore store_;
    PlayedHost own_host_, other_host_;
    RecordedWork work_;
    StandingModel standing_;
    std::unique_ptr<RankLinks> own_links_, other_links_;
    std::optional<Lead> lead_;
    std::optional<RankedHost> host_;
    std::optional<Lead::Calls> calls_;
    std::optional<LeadModel> model_;
    std::optional<Follower> follower_;
    std::thread thread_;
    Status ended_;
    std::atomic<bool> end_asked_{false};
    std::atomic<bool> loops_{false};
};

TEST_F(Lockstep, ACommandThatChangesMemoryWaitsUntilAllRanksHaveItAndIsDoneOnAll) {
    start(kLong, kLong);
    const uint64_t own = own_host_.tell(CommandKind::kShrink, 4096);
    EXPECT_FALSE(next_command(kMoment)) << "rank 1 was not told yet";
    EXPECT_TRUE(step()) << "steps go on meanwhile";
    const uint64_t theirs = other_host_.tell(CommandKind::kShrink, 4096);
    const auto command = next_command();
    ASSERT_TRUE(command);
    EXPECT_EQ(command->kind, CommandKind::kShrink);
    const BlockMove move{5, 1};
    ASSERT_TRUE(lead_->copy_blocks(std::span(&move, 1)));
    ASSERT_TRUE(lead_->resize(4096));
    EXPECT_FALSE(other_host_.answer(theirs, Nanoseconds(0))) << "it is not done on rank 0";
    complete(*command);
    ASSERT_TRUE(own_host_.answer(own, kPatience));
    const auto answer = other_host_.answer(theirs, kPatience);
    ASSERT_TRUE(answer);
    EXPECT_FALSE(answer->error);
    EXPECT_EQ(answer->grant_bytes, 4096U);
    EXPECT_THAT(work_.seen(), ElementsAre("step 1", "move 1", "resize 4096"));
}

TEST_F(Lockstep, ACommandThatRank0AloneHasFailsInWords) {
    start(kShort, kLong);
    const uint64_t id = own_host_.tell(CommandKind::kOffload, 4096);
    EXPECT_FALSE(next_command(std::chrono::milliseconds(500)));
    const auto answer = own_host_.answer(id, kPatience);
    ASSERT_TRUE(answer && answer->error);
    EXPECT_EQ(answer->error->reason, "RanksDisagree");
    EXPECT_THAT(answer->error->message, HasSubstr("rank 1 has none"));
}

TEST_F(Lockstep, ACommandThatAnotherRankAloneHasFailsInWordsAndIsNotInTheWayOfTheNext) {
    start(kLong, kShort);
    const uint64_t lonely = other_host_.tell(CommandKind::kGrow, 8192);
    const auto answer = other_host_.answer(lonely, kPatience);
    ASSERT_TRUE(answer && answer->error);
    EXPECT_EQ(answer->error->reason, "RanksDisagree");
}

TEST_F(Lockstep, RanksThatAreToldDifferentSizesDoNeither) {
    start(kShort, kLong);
    other_host_.tell(CommandKind::kShrink, 8192);
    const uint64_t id = own_host_.tell(CommandKind::kShrink, 4096);
    EXPECT_FALSE(next_command(std::chrono::milliseconds(500)));
    const auto answer = own_host_.answer(id, kPatience);
    ASSERT_TRUE(answer && answer->error);
    EXPECT_THAT(answer->error->message, HasSubstr("rank 1 has Shrink to 8Ki"));
    EXPECT_TRUE(work_.seen().empty());
}

TEST_F(Lockstep, APauseOfAnyRankKeepsAllFromSteppingUntilItsResume) {
    start(kLong, kLong);
    EXPECT_TRUE(step());
    ASSERT_TRUE(other_host_.answer(other_host_.tell(CommandKind::kPause), kPatience));
    EXPECT_TRUE(host_->paused());
    EXPECT_FALSE(step());
    ASSERT_TRUE(other_host_.answer(other_host_.tell(CommandKind::kResume), kPatience));
    while (host_->paused()) // its note is under way
        host_->wait(kMoment);
    EXPECT_TRUE(step());
    ASSERT_TRUE(lead_->resize(4096)); // answered after the step
    EXPECT_THAT(work_.seen(), ElementsAre("step 1", "step 1", "resize 4096"));
}

TEST_F(Lockstep, OtherRanksWishNothingOfTheirOwnBeforeRank0sLoopBegins) {
    start(kLong, kLong);
    EXPECT_TRUE(step());
    ASSERT_TRUE(lead_->resize(4096)); // all before has been done
    EXPECT_FALSE(loops_);
    lead_->loop_begins();
    ASSERT_TRUE(lead_->resize(8192));
    EXPECT_TRUE(loops_);
}

TEST_F(Lockstep, ARankWhoseGateIsClosedSleepsOutsideOfCollectivesAndTheStepGoesOnAfterwards) {
    start(kLong, kLong);
    standing_.stands = work_.stands = true; // one of them wished to
    other_host_.close_gate(true);
    auto made = std::async(std::launch::async, [this] { return step(); });
    ASSERT_TRUE(other_host_.await_sleeper(kPatience));
    EXPECT_EQ(made.wait_for(kMoment), std::future_status::timeout);
    other_host_.close_gate(false);
    EXPECT_TRUE(made.get());
}

TEST_F(Lockstep, TheStepsClockStandsWhileRank0WaitsForARankAtItsGate) {
    start(kLong, kLong);
    standing_.stands = work_.stands = true;
    other_host_.close_gate(true);
    host_->step_begins();
    auto made = std::async(std::launch::async, [this] { return step(); });
    ASSERT_TRUE(other_host_.await_sleeper(kPatience));
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (own_host_.steps && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(kMoment);
    EXPECT_FALSE(own_host_.steps) << "that rank's gate is no step of this one";
    other_host_.close_gate(false);
    EXPECT_TRUE(made.get());
    EXPECT_TRUE(own_host_.steps) << "it goes on";
}

TEST_F(Lockstep, APauseIsAnsweredWhereAllStandStill) {
    start(kLong, kLong);
    standing_.stands = work_.stands = true;
    other_host_.close_gate(true);
    auto made = std::async(std::launch::async, [this] { return step(); });
    ASSERT_TRUE(other_host_.await_sleeper(kPatience));
    // What waits there gives the step up; the loop then obeys.
    const uint64_t pause = other_host_.tell(CommandKind::kPause);
    EXPECT_FALSE(made.get());
    EXPECT_TRUE(other_host_.answer(pause, kPatience));
    EXPECT_THAT(work_.seen(), ElementsAre("step 1", "given up"));
}

// Memory that may grow to 8 KiB here, whatever others may.
class SmallArena final : public GrantArena {
  public:
    std::byte* data() const override { return nullptr; }
    uint64_t bytes() const override { return bytes_; }
    uint64_t bytes_max() const override { return 8192; }
    uint64_t step_bytes() const override { return 4096; }
    Status resize(uint64_t bytes) override {
        bytes_ = bytes;
        return {};
    }

  private:
    uint64_t bytes_ = 4096;
};

TEST_F(Lockstep, MemoryThatOneRankCannotTakeIsTakenByNone) {
    start(kLong, kLong);
    work_.most = 4096;
    SharedArena arena(std::make_unique<SmallArena>(), *lead_);
    const Status grown = arena.resize(8192);
    ASSERT_FALSE(grown);
    EXPECT_EQ(grown.error().reason, "OutOfMemory");
    EXPECT_THAT(grown.error().message, HasSubstr("rank 1"));
    EXPECT_EQ(arena.bytes(), 4096U);
    EXPECT_EQ(work_.bytes, 4096U);
}

TEST_F(Lockstep, DemandIsRaisedOnTheDevicesOfAllRanks) {
    start(kLong, kLong);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (const int wanted : {1, 0}) {
        wanted == 1 ? host_->raise_gate() : host_->lower_gate();
        EXPECT_EQ(own_host_.demand, wanted);
        while (other_host_.demand != wanted && std::chrono::steady_clock::now() < until)
            host_->wait(kMoment);
        EXPECT_EQ(other_host_.demand, wanted);
    }
}

TEST_F(Lockstep, ARankThatIsAskedToEndAsksRank0) {
    start(kLong, kLong);
    follower_->ask_end();
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!end_asked_ && std::chrono::steady_clock::now() < until)
        host_->wait(kMoment);
    EXPECT_TRUE(end_asked_);
}

} // namespace
} // namespace berth::engine
