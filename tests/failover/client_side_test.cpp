// SPDX-License-Identifier: Apache-2.0
// Goal: berthd learns who stands by, who serves as which generation, and that a step is stuck.
// Method: a real Client against a scripted berthd.
#include "engine_shim/client/client.h"
#include "tests/client/fake_daemon.h"

#include <chrono>
#include <future>
#include <thread>

namespace berth {
namespace {

using namespace std::chrono_literals;
using protocol::EngineState;
using testing::must;

class StandbyClient : public ::testing::Test {
  protected:
    void SetUp() override {
        ClientOptions options;
        options.socket = daemon_.path();
        options.instance = "chat-1";
        options.token = "secret";
        options.device = "host-0";
        auto connecting = std::async(std::launch::async, [&] { return Client::connect(options); });
        protocol::Welcome welcome;
        welcome.generation = 4;
        first_ = daemon_.accept_and_welcome(welcome);
        client_ = must(connecting.get());
    }
    protocol::Hello reconnected() {
        daemon_.hang_up();
        return daemon_.accept_and_welcome();
    }
    // The next that `found` takes. Bounded by the clock: how many reports a machine makes in a
    // millisecond says nothing.
    template <typename Found>
    protocol::Report report(Found found) {
        const auto until = std::chrono::steady_clock::now() + 20s;
        while (std::chrono::steady_clock::now() < until) {
            client_->report_now();
            const protocol::Report said = daemon_.expect<protocol::Report>();
            if (found(said))
                return said;
            std::this_thread::sleep_for(1ms);
        }
        ADD_FAILURE() << "no such report";
        return {};
    }

    testing::ScratchFolder folder_;
    testing::FakeDaemon daemon_{folder_.path("berthd.sock")};
    protocol::Hello first_;
    std::unique_ptr<Client> client_;
};

TEST_F(StandbyClient, SaysThatItStandsByUntilItServes) {
    EXPECT_EQ(first_.generation, 0U);
    EXPECT_EQ(client_->welcome().generation, 4U);
    client_->stand_by();
    client_->set_state(EngineState::kReady, "http://127.0.0.1:1");
    EXPECT_EQ(daemon_.expect<protocol::State>().held, "Standby");
    client_->serves_as(7);
    EXPECT_EQ(daemon_.expect<protocol::State>().held, "");
}

TEST_F(StandbyClient, SaysItAgainToTheNextDaemon) {
    client_->stand_by();
    client_->set_state(EngineState::kReady);
    const protocol::Hello stands_by = reconnected();
    EXPECT_EQ(stands_by.held, "Standby");
    EXPECT_EQ(stands_by.generation, 0U);
    client_->serves_as(9);
    const protocol::Hello serves = reconnected();
    EXPECT_EQ(serves.held, "");
    EXPECT_EQ(serves.generation, 9U);
}

TEST_F(StandbyClient, AStepThatDoesNotEndShowsInTheReports) {
    EXPECT_EQ(report([](const auto&) { return true; }).step_ms, 0U);
    client_->step_begins();
    const auto early = report([](const auto& said) { return said.step_ms > 0; });
    (void)report([&](const auto& said) { return said.step_ms > early.step_ms + 5; });
    client_->step_ends();
    (void)report([](const auto& said) { return said.step_ms == 0; });
}

TEST_F(StandbyClient, WhatAStepWaitsForAtTheGateIsNotItsTime) {
    client_->step_begins();
    (void)report([](const auto& said) { return said.step_ms > 20; });
    protocol::Command pause;
    pause.id = 1;
    pause.kind = protocol::CommandKind::kPause;
    daemon_.send(pause);
    auto waiting = std::async(std::launch::async, [&] {
        while (!client_->must_yield())
            client_->wait(10ms);
        return client_->yield_here();
    });
    EXPECT_EQ(daemon_.expect<protocol::CommandDone>().id, 1U);
    (void)report([](const auto& said) { return said.step_ms == 0; });
    protocol::Command resume;
    resume.id = 2;
    resume.kind = protocol::CommandKind::kResume;
    daemon_.send(resume);
    EXPECT_EQ(daemon_.expect<protocol::CommandDone>().id, 2U);
    EXPECT_TRUE(waiting.get());
    (void)report([](const auto& said) { return said.step_ms > 0; });
    client_->step_ends();
}

} // namespace
} // namespace berth
