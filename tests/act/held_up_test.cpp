// SPDX-License-Identifier: Apache-2.0
// Goal: whoever waits for MPS or for the driver holds up nobody else's end, and a client of MPS is
// let go by its server before it is killed also where only its own environment says that it is one.
// Method: real processes; MPS and the driver are played, and answer when the test says so.
#include "base/hash.h"
#include "scheduler/act/process_table.h"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

const node::InstanceName kClient("client"), kOther("other");

class HeldUpTest : public testing::Test {
  protected:
    HeldUpTest() : gone_(go_.get_future().share()) {}
    ~HeldUpTest() override {
        let_go();
        table_.reset();
        for (const auto& [name, ref] : refs_)
            if (signal_process({ref.pid, ref.start_ticks}, SIGKILL))
                ::waitpid(ref.pid, nullptr, 0);
    }
    void let_go() {
        if (!std::exchange(went_, true))
            go_.set_value();
    }
    ProcessTable& table() {
        if (!table_)
            table_.emplace(io_, observer(), askers());
        return *table_;
    }
    ProcessTable::Observer observer() {
        ProcessTable::Observer observer;
        observer.ended = [this](const ProcessTable::Ended& said) { ended_.insert(said.instance); };
        observer.leader_ended = [](const ProcessTable::Ended&, const std::string&) {};
        observer.moved = [](const node::InstanceName&, const node::ProcessRef&, bool) {};
        observer.kill_refused = [this](const node::InstanceName& instance, const node::ProcessRef&,
                                       const std::string&) { refused_.insert(instance); };
        observer.care = [this](const node::InstanceName& instance) { return cares_[instance]; };
        return observer;
    }
    ProcessTable::Askers askers() {
        ProcessTable::Askers askers;
        askers.release_mps = [this](const std::string& pipes, const std::vector<int>& pids) {
            note(pipes, pids);
            gone_.wait();
            for (int pid : pids)
                EXPECT_EQ(::kill(pid, 0), 0) << "it is killed only afterwards";
            return Status();
        };
        askers.held_on_gpus = [this](const ProcessTable::Care&, const std::vector<ProcessId>&) {
            note("driver", {});
            gone_.wait();
            return std::string();
        };
        return askers;
    }
    void note(const std::string& what, const std::vector<int>& pids) {
        const std::lock_guard lock(mutex_);
        asked_[what].insert(pids.begin(), pids.end());
    }
    bool was_asked(const std::string& what) {
        const std::lock_guard lock(mutex_);
        return asked_.contains(what);
    }
    void start(const node::InstanceName& name, const std::string& script,
               const std::string& pipes = "") {
        SpawnOptions options;
        options.command = {"sh", "-c", script};
        options.environment["BERTH_TOKEN"] = token(name);
        if (!pipes.empty())
            options.environment["CUDA_MPS_PIPE_DIRECTORY"] = pipes;
        cares_[name].token_sha256 = sha256_hex(token(name));
        refs_[name] = table().start(name, options).value();
    }
    static std::string token(const node::InstanceName& name) {
        return "held up " + name.value + std::to_string(::getpid()) +
               testing::UnitTest::GetInstance()->current_test_info()->name();
    }
    void kill(const node::InstanceName& name) {
        EXPECT_TRUE(table().signal(name, refs_.at(name), SIGKILL).has_value());
    }
    bool until(const std::function<bool()>& reached) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!reached() && std::chrono::steady_clock::now() < end) {
            io_.restart();
            io_.run_for(std::chrono::milliseconds(5));
        }
        return reached();
    }

    boost::asio::io_context io_;
    std::promise<void> go_;
    std::shared_future<void> gone_;
    bool went_ = false;
    std::mutex mutex_;
    std::map<std::string, std::set<int>> asked_; // by pipes, or "driver"
    std::map<node::InstanceName, ProcessTable::Care> cares_;
    std::map<node::InstanceName, node::ProcessRef> refs_;
    std::set<node::InstanceName> ended_, refused_;
    std::optional<ProcessTable> table_;
};

TEST_F(HeldUpTest, WhileMpsDoesNotAnswerForOneAnotherEnds) {
    start(kClient, "exec sleep 600", "/pipes");
    start(kOther, "sleep 600 & exec sleep 600");
    kill(kClient);
    ASSERT_TRUE(until([&] { return was_asked("/pipes"); }));
    kill(kOther);
    ASSERT_TRUE(until([&] { return ended_.contains(kOther); }));
    EXPECT_FALSE(ended_.contains(kClient));
    let_go();
    ASSERT_TRUE(until([&] { return ended_.contains(kClient); }));
    EXPECT_TRUE(refused_.empty());
}

TEST_F(HeldUpTest, WhileTheDriverDoesNotAnswerForOneAnotherEnds) {
    start(kClient, "exec sleep 600");
    cares_[kClient].gpus = {"GPU-1"};
    start(kOther, "sleep 600 & exec sleep 600");
    kill(kClient);
    ASSERT_TRUE(until([&] { return was_asked("driver"); }));
    kill(kOther);
    ASSERT_TRUE(until([&] { return ended_.contains(kOther); }));
    EXPECT_FALSE(ended_.contains(kClient)) << "its memory may still be counted";
    let_go();
    EXPECT_TRUE(until([&] { return ended_.contains(kClient); }));
}

TEST_F(HeldUpTest, WhatADeadClientHasLeftIsItsServersToLetGoBeforeItIsKilled) {
    let_go();
    start(kClient, "sleep 600 & sleep 600", "/pipes");
    const TreeQuery query{
        {refs_[kClient].pid, refs_[kClient].start_ticks}, false, {}, sha256_hex(token(kClient))};
    ASSERT_TRUE(until([&] { return find_tree(query).size() == 3; }));
    table_.reset(); // the next berthd's, which knows nothing of the instance yet
    EXPECT_TRUE(signal_process(query.leader, SIGKILL).has_value());
    ::waitpid(query.leader.pid, nullptr, 0);
    std::set<int> left;
    for (const TreeMember& one : find_tree(query))
        left.insert(one.id.pid);
    ASSERT_EQ(left.size(), 2U);
    const std::string token_sha256 = std::exchange(cares_[kClient], {}).token_sha256;
    ASSERT_TRUE(table().adopt_rest(kClient, refs_[kClient], token_sha256).has_value());
    ASSERT_TRUE(until([&] { return ended_.contains(kClient); }));
    EXPECT_EQ(asked_["/pipes"], left);
}

TEST_F(HeldUpTest, WhoHasNoGpuIsNotAskedFor) {
    start(kOther, "exec sleep 600", "/pipes");
    cares_[kOther].no_mps = true;
    kill(kOther);
    ASSERT_TRUE(until([&] { return ended_.contains(kOther); }));
    EXPECT_TRUE(asked_.empty());
}

} // namespace
} // namespace berth
