// SPDX-License-Identifier: Apache-2.0
// Goal: what the node hears of an instance of several ranks is what it would hear of one process:
// one start, one connection, one answer to a command, one end with its first cause. Method: a crew
// with played hands; what happens to ranks is told to it in every order that matters.
#include "scheduler/act/crew.h"
#include "scheduler/act/rank_name.h"

#include <gtest/gtest.h>

#include <utility>

namespace berth {
namespace {

using node::CommandDone;
using node::EngineHeld;
using node::EngineState;
using node::ProcessRef;

const node::InstanceName kName("chat");

ProcessRef process_of(uint32_t rank) {
    return {static_cast<int>(100 + rank), 7000 + rank};
}

class CrewTest : public testing::Test {
  protected:
    static std::vector<std::string> tokens(uint32_t ranks) {
        std::vector<std::string> made;
        for (uint32_t rank = 0; rank < ranks; ++rank)
            made.push_back("token" + std::to_string(rank));
        return made;
    }
    void make(uint32_t ranks) {
        Crew::Hands hands;
        hands.tell = [this](node::Event event) { told_.push_back(std::move(event)); };
        hands.end = [this](uint32_t rank, const ProcessRef& process) {
            EXPECT_EQ(process, process_of(rank));
            killed_.push_back(rank);
        };
        hands.renew = [this](uint32_t rank) { renewed_.push_back(rank); };
        hands.later = [this](Nanoseconds delay, std::function<void()> deed) {
            later_.emplace_back(delay, std::move(deed));
        };
        hands.over = [this] { over_ = true; };
        hands.log_of = [](uint32_t rank) { return "log" + std::to_string(rank); };
        hands.comes_up = [this] { return comes_up_; };
        crew_.emplace(kName, tokens(ranks), std::move(hands));
    }
    void start(uint32_t rank) {
        crew_->hear(rank, node::ProcessStarted{kName, process_of(rank), {}, {}});
    }
    void end(uint32_t rank, const std::string& how, bool clean = false) {
        crew_->hear(rank, node::ProcessExited{kName, process_of(rank), clean, how, ""});
    }
    void open(uint32_t rank, EngineHeld held = EngineHeld::kNothing, uint64_t grant = 0) {
        node::SessionOpened event;
        event.instance = kName;
        event.process = process_of(rank);
        event.program = "engine " + std::to_string(rank);
        event.held = held;
        event.grant_bytes = grant;
        crew_->hear(rank, event);
    }
    void say(uint32_t rank, EngineState state, const std::string& reason = "",
             const std::string& message = "") {
        node::EngineStateChanged event;
        event.instance = kName;
        event.state = state;
        event.reason = reason;
        event.message = message;
        crew_->hear(rank, event);
    }
    void answer(uint32_t rank, uint64_t id, const std::string& error = "", double ms = 1,
                uint64_t host = 10) {
        CommandDone event;
        event.instance = kName;
        event.command = node::CommandId{id};
        event.grant_bytes = 5;
        event.host_bytes = host;
        event.phases["drain"] = ms;
        if (!error.empty())
            event.error = Error{ErrorCode::kUnavailable, error, "Failed", 0};
        crew_->hear(rank, event);
    }
    void ask(uint64_t id, node::CommandKind kind) {
        node::SendCommand command;
        command.instance = kName;
        command.command = node::CommandId{id};
        command.kind = kind;
        crew_->asked(command);
    }
    void run(uint32_t ranks) { // up to connected, with nothing told
        make(ranks);
        for (uint32_t rank = 0; rank < ranks; ++rank)
            start(rank);
        for (uint32_t rank = 0; rank < ranks; ++rank)
            open(rank);
        told_.clear();
    }
    template <typename Kind>
    Kind only() { // what was told since
        EXPECT_EQ(told_.size(), 1U);
        const Kind* found = told_.empty() ? nullptr : std::get_if<Kind>(&told_.front());
        EXPECT_NE(found, nullptr);
        Kind event = found == nullptr ? Kind() : *found;
        told_.clear();
        return event;
    }

    std::optional<Crew> crew_;
    std::vector<node::Event> told_;
    std::vector<uint32_t> killed_;
    std::vector<uint32_t> renewed_;
    std::vector<std::pair<Nanoseconds, std::function<void()>>> later_;
    bool over_ = false;
    bool comes_up_ = true;
};

TEST_F(CrewTest, AStartIsToldWhenTheLastRankIsStarted) {
    make(3);
    start(2);
    start(0);
    EXPECT_TRUE(told_.empty());
    start(1);
    const auto started = only<node::ProcessStarted>();
    EXPECT_EQ(started.process, process_of(0));
    EXPECT_EQ(started.token_sha256, "token0");
    ASSERT_EQ(started.others.size(), 2U);
    EXPECT_EQ(started.others[1], (node::RankProcess{process_of(2), "token2"}));
}

TEST_F(CrewTest, OneThatCannotBeStartedIsAFailedStartOnceTheOthersAreGone) {
    make(2);
    start(0);
    crew_->hear(1, node::ProcessStartFailed{kName, Error{ErrorCode::kIo, "no memory", "", 12}});
    EXPECT_EQ(killed_, std::vector<uint32_t>{0});
    EXPECT_TRUE(told_.empty());
    end(0, "killed by SIGKILL");
    EXPECT_EQ(only<node::ProcessStartFailed>().error.message, "rank 1: no memory");
    EXPECT_TRUE(over_);
}

TEST_F(CrewTest, OneThatIsStartedAfterAnotherHasEndedIsKilledAndTheCauseIsTold) {
    make(2);
    start(0);
    end(0, "exit code 1");
    EXPECT_TRUE(told_.empty());
    start(1);
    EXPECT_EQ(killed_, std::vector<uint32_t>{1});
    EXPECT_EQ(only<node::ProcessStarted>().process, process_of(0));
    end(1, "killed by SIGKILL");
    EXPECT_EQ(only<node::ProcessExited>().description,
              "rank 0 (pid 100): exit code 1; all ranks end with it");
}

TEST_F(CrewTest, ItIsConnectedWhileAllRanksAre) {
    make(2);
    start(0);
    start(1);
    told_.clear();
    open(0, EngineHeld::kNothing, 3);
    say(0, EngineState::kReady); // it was quicker
    EXPECT_TRUE(told_.empty());
    open(1, EngineHeld::kNothing, 8);
    ASSERT_EQ(told_.size(), 2U);
    EXPECT_EQ(std::get<node::SessionOpened>(told_[0]).program, "engine 0");
    EXPECT_EQ(std::get<node::SessionOpened>(told_[0]).grant_bytes, 8U);
    EXPECT_EQ(std::get<node::EngineStateChanged>(told_[1]).state, EngineState::kReady);
    told_.clear();
    crew_->hear(1, node::SessionClosed{kName});
    only<node::SessionClosed>();
    crew_->hear(0, node::SessionClosed{kName});
    EXPECT_TRUE(told_.empty());
    open(1);
    EXPECT_TRUE(told_.empty());
    open(0);
    only<node::SessionOpened>();
}

// What rank 0 said when it connected is older than the commands since: taken for what is, it would
// end a healthy instance for more than its grant, or offload one that runs.
TEST_F(CrewTest, WhenOneIsBackTheOthersSayAnewWhereTheyAre) {
    make(3);
    for (uint32_t rank = 0; rank < 3; ++rank)
        start(rank);
    for (uint32_t rank = 0; rank < 3; ++rank)
        open(rank, EngineHeld::kOffloaded, 900);
    EXPECT_TRUE(renewed_.empty()) << "all of it is new";
    told_.clear();
    ask(1, node::CommandKind::kRestore); // and shrunk since
    for (uint32_t rank = 0; rank < 3; ++rank)
        answer(rank, 1);
    told_.clear();
    crew_->hear(1, node::SessionClosed{kName});
    only<node::SessionClosed>();
    EXPECT_TRUE(renewed_.empty()) << "it may be about to end";
    say(0, EngineState::kFailed, "RankLost", "still heard");
    open(1, EngineHeld::kNothing, 5);
    EXPECT_EQ(renewed_, (std::vector<uint32_t>{0, 2}));
    crew_->hear(0, node::SessionClosed{kName});
    open(0, EngineHeld::kNothing, 5);
    EXPECT_TRUE(told_.empty());
    crew_->hear(2, node::SessionClosed{kName});
    open(2, EngineHeld::kNothing, 5);
    const auto opened = only<node::SessionOpened>();
    EXPECT_EQ(opened.held, EngineHeld::kNothing);
    EXPECT_EQ(opened.grant_bytes, 5U);
    EXPECT_EQ(renewed_.size(), 2U);
}

TEST_F(CrewTest, RanksThatACommandHasReachedInPartAreTakenForWhereTheyComeFrom) {
    for (const auto& [up, held] :
         {std::pair(true, EngineHeld::kPaused), std::pair(false, EngineHeld::kNothing)}) {
        told_.clear();
        make(2);
        comes_up_ = up;
        start(0);
        start(1);
        told_.clear();
        open(0, EngineHeld::kPaused);
        open(1);
        EXPECT_EQ(only<node::SessionOpened>().held, held);
    }
}

TEST_F(CrewTest, OnlyRankZeroSaysWhatTheInstanceIsButAnyMayFail) {
    run(2);
    say(1, EngineState::kReady);
    crew_->hear(1, node::EngineReport{kName, {}});
    EXPECT_EQ(only<node::EngineHeard>().rank, 1U) << "its figures are its own";
    say(0, EngineState::kReady);
    only<node::EngineStateChanged>();
    crew_->hear(0, node::EngineReport{kName, {}});
    only<node::EngineReport>();
    say(1, EngineState::kFailed, "RanksDiffer", "another model");
    const auto failed = only<node::EngineStateChanged>();
    EXPECT_EQ(failed.reason, "RanksDiffer");
    EXPECT_EQ(failed.message, "rank 1: another model");
    say(0, EngineState::kFailed, "RankLost", "rank 1 is gone");
    EXPECT_TRUE(told_.empty());
}

TEST_F(CrewTest, ACommandIsAnsweredWhenAllHaveAnsweredIt) {
    run(3);
    ask(9, node::CommandKind::kOffload);
    answer(2, 9, "", 4);
    answer(0, 9, "", 30);
    EXPECT_TRUE(told_.empty());
    answer(0, 9, "", 31); // told twice, counted once
    EXPECT_TRUE(told_.empty());
    answer(1, 9, "", 5);
    const auto done = only<CommandDone>();
    EXPECT_FALSE(done.error);
    EXPECT_EQ(done.command, node::CommandId{9});
    EXPECT_EQ(done.grant_bytes, 5U);
    EXPECT_EQ(done.host_bytes, 30U);
    EXPECT_EQ(done.phases.at("drain"), 31);
    answer(1, 9);
    EXPECT_TRUE(told_.empty());
}

TEST_F(CrewTest, OneFailureIsTheInstances) {
    run(2);
    ask(9, node::CommandKind::kShrink);
    answer(0, 9);
    answer(1, 9, "no room");
    EXPECT_EQ(only<CommandDone>().error->message, "rank 1: no room");
}

TEST_F(CrewTest, ServeIsRankZerosAlone) {
    run(2);
    EXPECT_EQ(crew_->asked_of(node::CommandKind::kServe), 1U);
    EXPECT_EQ(crew_->asked_of(node::CommandKind::kStop), 2U);
    ask(4, node::CommandKind::kServe);
    answer(1, 4);
    EXPECT_TRUE(told_.empty());
    answer(0, 4, "stale");
    EXPECT_EQ(only<CommandDone>().error->message, "stale");
}

TEST_F(CrewTest, TheDeathOfOneEndsAllAndIsNamedHoweverTheOthersEnd) {
    run(3);
    say(0, EngineState::kFailed, "RankLost", "rank 1 is gone");
    end(0, "exit code 3"); // seen before the one that it follows
    EXPECT_EQ(killed_, (std::vector<uint32_t>{1, 2}));
    end(1, "killed by SIGSEGV");
    EXPECT_TRUE(told_.empty());
    end(2, "killed by SIGKILL");
    const auto exited = only<node::ProcessExited>();
    EXPECT_EQ(exited.process, process_of(0));
    EXPECT_FALSE(exited.clean);
    EXPECT_EQ(exited.description, "rank 1 (pid 101): killed by SIGSEGV; all ranks end with it");
    EXPECT_EQ(exited.log_path, "log1");
    EXPECT_TRUE(over_);
    end(1, "killed by SIGSEGV"); // over: nothing is told twice
    EXPECT_TRUE(told_.empty());
}

TEST_F(CrewTest, WhatEndsWellIsNotCutShort) {
    run(2);
    say(0, EngineState::kSucceeded);
    told_.clear();
    end(1, "ended"); // of another berthd's child only that is known
    EXPECT_TRUE(killed_.empty());
    end(0, "exit code 0", true);
    EXPECT_FALSE(only<node::ProcessExited>().clean); // the node goes by the engine's word

    run(2);
    ask(1, node::CommandKind::kStop);
    end(0, "exit code 0", true);
    EXPECT_TRUE(killed_.empty());
    end(1, "exit code 0", true);
    const auto exited = only<node::ProcessExited>();
    EXPECT_TRUE(exited.clean);
    EXPECT_EQ(exited.description, "exit code 0");
    EXPECT_TRUE(killed_.empty());
}

TEST_F(CrewTest, WhoDoesNotFollowInTimeIsKilledAndWhoLingersIsTold) {
    run(2);
    ask(1, node::CommandKind::kStop);
    end(0, "exit code 0", true);
    ASSERT_EQ(later_.size(), 2U);
    later_[0].second();
    EXPECT_EQ(killed_, std::vector<uint32_t>{1});
    later_[1].second();
    EXPECT_EQ(only<node::LeaderExited>().left, "rank 1 (pid 101)");
    later_[1].second();
    EXPECT_TRUE(told_.empty());
}

TEST_F(CrewTest, RankZerosDyingIsTheInstances) {
    run(2);
    crew_->hear(1, node::ProcessDying{kName, process_of(1)});
    EXPECT_TRUE(told_.empty());
    crew_->hear(0, node::ProcessDying{kName, process_of(0)});
    EXPECT_EQ(only<node::ProcessDying>().process, process_of(0));
}

TEST_F(CrewTest, WhatIsFoundInPartIsEnded) {
    make(3);
    crew_->adopted({process_of(0), process_of(1), process_of(2)}, {1});
    EXPECT_EQ(killed_, (std::vector<uint32_t>{0, 2}));
    end(0, "ended");
    end(2, "ended");
    EXPECT_EQ(only<node::ProcessExited>().description,
              "rank 1 (pid 101): ended while the daemon was away; all ranks end with it");
}

TEST_F(CrewTest, WhatIsFoundWholeGoesOn) {
    make(2);
    crew_->adopted({process_of(0), {}}, {});
    EXPECT_TRUE(killed_.empty());
    open(1); // whose pid was not on record
    EXPECT_EQ(crew_->process(1), process_of(1));
    open(0);
    only<node::SessionOpened>();
}

TEST(RankName, LeadsBackToInstanceAndRank) {
    EXPECT_EQ(rank_name(kName, 0), kName);
    const RankOf of = rank_of(rank_name(kName, 12));
    EXPECT_EQ(of.instance, kName);
    EXPECT_EQ(of.rank, 12U);
    EXPECT_EQ(rank_of(kName).rank, 0U);
}

} // namespace
} // namespace berth
