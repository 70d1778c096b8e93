// SPDX-License-Identifier: Apache-2.0
// Goal: however long a request waits, its connection keeps one word of it, and the peer's leaving
// ends the wait; work that throws is an error of the request. Method: a played peer, and real
// timers that nothing else ends.
#include "base/http/task_group.h"
#include "scheduler/admin/wait.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

namespace berth {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

class PlayedPeer final : public http::Peer {
  public:
    bool closed() const override { return closed_; }
    void on_closed(std::function<void()> callback) override {
        callbacks.push_back(std::move(callback));
    }
    void close() {
        closed_ = true;
        for (const auto& callback : callbacks)
            callback();
    }
    std::vector<std::function<void()>> callbacks;

  private:
    bool closed_ = false;
};

TEST(PeerWaits, ManyWaitsAreOneWordToThePeerWhoseLeavingEndsTheOneUnderWay) {
    asio::io_context io;
    Signal changed(io);
    PlayedPeer peer;
    constexpr int kTurns = 200;
    int turns = 0;
    bool over = false;
    const auto follow = [&]() -> asio::awaitable<void> {
        PeerWaits waits(peer);
        while (!peer.closed()) {
            co_await waits.on(changed.waiter(Clock::time_point::max()));
            ++turns;
        }
        over = true;
    };
    http::TaskGroup tasks(io);
    tasks.start("follow", follow());
    std::function<void()> change = [&] {
        if (turns < kTurns)
            changed.notify();
        else
            peer.close();
        if (!over)
            asio::post(io, change);
    };
    asio::post(io, change);
    io.run_for(std::chrono::seconds(60));
    EXPECT_TRUE(over);
    EXPECT_EQ(turns, kTurns + 1);
    EXPECT_EQ(peer.callbacks.size(), 1U);
}

TEST(RunOn, WhatTheWorkThrowsIsThrownToWhoWaits) {
    asio::io_context io;
    WorkerPool pool(io, 1);
    std::string words;
    const auto ask = [&]() -> asio::awaitable<void> {
        auto work = []() -> http::Response { throw std::runtime_error("it broke"); };
        try {
            (void)co_await run_on(io, pool, work);
        } catch (const std::exception& error) {
            words = error.what();
        }
    };
    const auto guard = asio::make_work_guard(io);
    http::TaskGroup tasks(io);
    tasks.start("ask", ask());
    const auto end = Clock::now() + std::chrono::seconds(60);
    while (words.empty() && Clock::now() < end)
        io.run_one_for(std::chrono::milliseconds(10));
    EXPECT_NE(words.find("it broke"), std::string::npos) << words;
}

} // namespace
} // namespace berth
