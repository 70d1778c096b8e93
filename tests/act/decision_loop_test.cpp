// SPDX-License-Identifier: Apache-2.0
// Goal: what many events want done is done in order, and nobody else waits for all of it. Method: a
// real store, and an actor whose every action takes a while.
#include "scheduler/act/decision_loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <filesystem>

namespace berth {
namespace {

using std::chrono::steady_clock;

constexpr auto kEach = DecisionLoop::kTurnMax / 3;
constexpr size_t kEvents = 60;

class SlowActor final : public DecisionLoop::Actor {
  public:
    void announce(const node::Action&) override {}
    std::optional<StoreWrite> record_of(const node::Action& action) override {
        if (std::holds_alternative<node::PersistOperation>(action))
            return ForgetInstance{"nobody"};
        return std::nullopt;
    }
    void carry_out(const node::Action& action, const Status&) override {
        if (const auto* load = std::get_if<node::LoadFinished>(&action))
            done.push_back(load->key.path);
        else if (const auto* operation = std::get_if<node::OperationDone>(&action))
            done.push_back(operation->operation.id.value);
        const auto until = steady_clock::now() + kEach;
        while (steady_clock::now() < until) {
        }
    }
    std::vector<std::string> done;
};

class Decisions : public testing::Test {
  protected:
    Decisions() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "berth-act-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
        auto opened = Store::open(folder_);
        EXPECT_TRUE(opened) << opened.error().message;
        store_ = std::move(opened->store);
        loop_ = std::make_unique<DecisionLoop>(io_, *store_, actor_);
        loop_->post(node::DocumentsApplied{});
        actor_.done.clear();
    }
    ~Decisions() override {
        store_.reset();
        std::filesystem::remove_all(folder_);
    }
    Decisions(const Decisions&) = delete;
    Decisions& operator=(const Decisions&) = delete;

    // Refused at once, and nothing is recorded of it.
    static node::LoadRequested unknown(size_t number) {
        node::LoadRequested event;
        event.model = node::ModelName("nobody");
        event.path = std::to_string(number);
        return event;
    }
    // Has its turn whenever the loop lets others.
    void look() {
        ++turns_;
        if (actor_.done.size() <= kEvents)
            boost::asio::post(io_, [this] { look(); });
    }

    boost::asio::io_context io_;
    SlowActor actor_;
    std::string folder_;
    std::unique_ptr<Store> store_;
    std::unique_ptr<DecisionLoop> loop_;
    size_t turns_ = 0;
};

TEST_F(Decisions, WhatIsReadyAtOnceIsDoneInOrderAndOthersGetTheirTurnsMeanwhile) {
    node::OperatorResume first; // its end waits for the disk, and all the others for it
    first.operation = node::OperationId("op");
    first.instance = node::InstanceName("nobody");
    loop_->post(first);
    for (size_t n = 0; n < kEvents; ++n)
        loop_->post(unknown(n));
    EXPECT_TRUE(actor_.done.empty());
    auto guard = boost::asio::make_work_guard(io_);
    boost::asio::post(io_, [this] { look(); });
    size_t before = 0;
    while (actor_.done.size() <= kEvents) {
        ASSERT_EQ(io_.run_one_for(std::chrono::seconds(20)), 1U) << actor_.done.size();
        before = actor_.done.empty() ? turns_ : before;
    }
    ASSERT_EQ(actor_.done.size(), kEvents + 1);
    EXPECT_EQ(actor_.done.front(), "op");
    for (size_t n = 0; n < kEvents; ++n)
        EXPECT_EQ(actor_.done[n + 1], std::to_string(n));
    // A turn holds four of them at most, and then it is somebody else's.
    EXPECT_GE(turns_ - before, kEvents / 4 - 1);
    EXPECT_TRUE(loop_->idle());
}

TEST_F(Decisions, AnEventIsDecidedWhenPostReturnsHoweverMuchIsStillToBeDone) {
    node::OperatorResume first;
    first.operation = node::OperationId("op");
    first.instance = node::InstanceName("nobody");
    loop_->post(first);
    for (size_t n = 0; n < kEvents; ++n)
        loop_->post(unknown(n));
    loop_->post(node::DeviceSeen{node::DeviceId("host-0"), DeviceKind::kHost, "host", 1});
    EXPECT_TRUE(loop_->state().devices.contains(node::DeviceId("host-0")));
}

} // namespace
} // namespace berth
