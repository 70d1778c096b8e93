// SPDX-License-Identifier: Apache-2.0
// Goal: an instance is its whole tree of processes: it stands still, goes on and ends as one, and
// is said to have ended only when the last of it has. Method: real shells that start others, and a
// debugger's hold for what SIGKILL does not end.
#include "scheduler/act/process_table.h"

#include "base/hash.h"

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {

namespace {

const node::InstanceName kJob("job");
constexpr std::chrono::seconds kPatience(60);
// A sleep in the leader's group, one in a session of its own, and one whose parent has ended.
constexpr const char* kFamily = "sleep 600 & setsid sleep 600 & (setsid sleep 600 &) ; ";

class ProcessTableTest : public testing::Test {
  protected:
    ~ProcessTableTest() override {
        for (const TreeMember& one : members())
            (void)signal_process(one.id, SIGKILL);
    }

    node::ProcessRef start(const std::string& script, size_t expected) {
        SpawnOptions options;
        options.command = {"sh", "-c", script};
        options.environment["BERTH_TOKEN"] = token_;
        if (!pipes_.empty())
            options.environment["PATH"] = pipes_ + ":" + std::getenv("PATH");
        ref_ = table().start(kJob, options).value();
        EXPECT_TRUE(until([&] { return members().size() == expected; }));
        return ref_;
    }
    ProcessTable& table() {
        if (!table_)
            table_.emplace(io_, observer());
        return *table_;
    }
    ProcessTable::Observer observer() {
        ProcessTable::Observer observer;
        observer.ended = [this](ProcessTable::Ended said) {
            ended_ = std::move(said);
            left_at_end_ = members().size();
        };
        observer.leader_ended = [this](const ProcessTable::Ended&, std::string left) {
            left_ = std::move(left);
        };
        observer.moved = [this](const node::InstanceName&, const node::ProcessRef&, bool stopped) {
            stopped_ = stopped;
        };
        observer.kill_refused = [this](const node::InstanceName&, const node::ProcessRef&,
                                       std::string why) { refused_ = std::move(why); };
        observer.care = [this](const node::InstanceName&) {
            ProcessTable::Care care;
            care.token_sha256 = sha256_hex(token_);
            care.mps_pipe_directory = pipes_;
            return care;
        };
        return observer;
    }
    std::vector<TreeMember> members() const {
        return find_tree({{ref_.pid, ref_.start_ticks}, false, {}, sha256_hex(token_)});
    }
    bool until(const std::function<bool()>& reached) {
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (!reached()) {
            if (std::chrono::steady_clock::now() > end)
                return false;
            io_.restart();
            io_.run_for(std::chrono::milliseconds(5));
        }
        return true;
    }
    void signal(int number) { EXPECT_TRUE(table().signal(kJob, ref_, number).has_value()); }

    boost::asio::io_context io_;
    std::string token_ = "table " + std::to_string(::getpid()) +
                         testing::UnitTest::GetInstance()->current_test_info()->name();
    std::string pipes_;
    node::ProcessRef ref_;
    std::optional<ProcessTable::Ended> ended_;
    std::optional<std::string> left_, refused_;
    std::optional<bool> stopped_;
    size_t left_at_end_ = 0;
    std::optional<ProcessTable> table_;
};

} // namespace

TEST_F(ProcessTableTest, StoppedIsSaidWhenAllOfItStandsStill) {
    start(std::string(kFamily) + "while :; do :; done", 4);
    signal(SIGSTOP);
    ASSERT_TRUE(until([&] { return stopped_.has_value(); }));
    EXPECT_TRUE(*stopped_);
    for (const TreeMember& one : members())
        EXPECT_TRUE(stands_still(one.id.pid)) << one.name;
    stopped_.reset();
    signal(SIGCONT);
    ASSERT_TRUE(until([&] { return stopped_.has_value(); }));
    EXPECT_FALSE(*stopped_);
    EXPECT_TRUE(until([&] {
        bool any = false;
        for (const TreeMember& one : members())
            any = any || stands_still(one.id.pid);
        return !any;
    }));
}

TEST_F(ProcessTableTest, EndedIsSaidWhenTheLastOfItHasEnded) {
    start(std::string(kFamily) + "exec sleep 600", 4);
    EXPECT_TRUE(signal_process({ref_.pid, ref_.start_ticks}, SIGKILL).has_value());
    ASSERT_TRUE(until([&] { return ended_.has_value(); }));
    EXPECT_EQ(left_at_end_, 0U);
    EXPECT_EQ(ended_->description, "killed by SIGKILL");
    EXPECT_EQ(ended_->process, ref_);
    EXPECT_FALSE(table().has(kJob));
}

TEST_F(ProcessTableTest, AnExitCodeIsKnownThoughOthersHaveToBeEndedFirst) {
    start(std::string(kFamily) + "trap 'exit 7' TERM; while :; do sleep 0.01; done", 5);
    signal(SIGTERM);
    ASSERT_TRUE(until([&] { return ended_.has_value(); }));
    EXPECT_EQ(ended_->description, "exit code 7");
    EXPECT_FALSE(ended_->clean);
    EXPECT_EQ(left_at_end_, 0U);
}

TEST_F(ProcessTableTest, SigkillReachesWhoHasLeftTheGroup) {
    start(std::string(kFamily) + "trap '' TERM; while :; do sleep 0.01; done", 5);
    signal(SIGTERM);
    signal(SIGKILL);
    ASSERT_TRUE(until([&] { return ended_.has_value(); }));
    EXPECT_EQ(left_at_end_, 0U);
}

TEST_F(ProcessTableTest, WhatStandsStillIsLetGoToActOnSigterm) {
    start("trap 'exit 7' TERM; while :; do sleep 0.01; done", 2);
    signal(SIGSTOP);
    ASSERT_TRUE(until([&] { return stopped_.has_value(); }));
    signal(SIGTERM);
    ASSERT_TRUE(until([&] { return ended_.has_value(); }));
    EXPECT_EQ(ended_->description, "exit code 7");
}

TEST_F(ProcessTableTest, AnotherProcessWithThatPidIsNotSignalled) {
    start("exec sleep 600", 1);
    node::ProcessRef namesake = ref_;
    namesake.start_ticks += 1;
    EXPECT_FALSE(table().signal(kJob, namesake, SIGKILL).has_value());
    EXPECT_FALSE(table().adopt(node::InstanceName("other"), namesake).has_value());
    EXPECT_TRUE(is_alive({ref_.pid, ref_.start_ticks}));
}

TEST_F(ProcessTableTest, WhatADeadLeaderHasLeftIsFoundAgainAndEnded) {
    start(std::string(kFamily) + "exec sleep 600", 4);
    table_.emplace(io_, observer()); // the next berthd's
    EXPECT_TRUE(signal_process({ref_.pid, ref_.start_ticks}, SIGKILL).has_value());
    ::waitpid(ref_.pid, nullptr, 0);
    EXPECT_FALSE(table().adopt(kJob, ref_).has_value());
    ASSERT_TRUE(table().adopt_rest(kJob, ref_, sha256_hex(token_)).has_value());
    ASSERT_TRUE(until([&] { return ended_.has_value(); }));
    EXPECT_EQ(left_at_end_, 0U);
    EXPECT_EQ(ended_->process, ref_);
    EXPECT_FALSE(table().adopt_rest(kJob, ref_, sha256_hex(token_)).has_value())
        << "nobody is left";
}

TEST_F(ProcessTableTest, WhatSigkillDoesNotEndIsNamedAndWaitedFor) {
    // The leader's child is held at its exit, as one that waits for a hung device is.
    start("sleep 600 & exec sleep 601", 2);
    int held = 0;
    for (const TreeMember& one : members())
        held = one.id.pid == ref_.pid ? held : one.id.pid;
    if (::ptrace(PTRACE_SEIZE, held, nullptr, PTRACE_O_TRACEEXIT) != 0)
        GTEST_SKIP() << "ptrace: " << std::strerror(errno);
    signal(SIGKILL);
    ASSERT_TRUE(until([&] { return left_.has_value(); }));
    EXPECT_NE(left_->find("pid " + std::to_string(held)), std::string::npos) << *left_;
    EXPECT_FALSE(ended_.has_value());
    ::waitpid(held, nullptr, __WALL);
    ::ptrace(PTRACE_DETACH, held, nullptr, nullptr);
    EXPECT_TRUE(until([&] { return ended_.has_value(); }));
}

TEST_F(ProcessTableTest, AnMpsClientIsKilledOnlyWhenItsServerHasLetItGo) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("mps-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::filesystem::create_symlink(BERTH_FAKE_MPS, folder / "nvidia-cuda-mps-control");
    pipes_ = folder.string();
    const std::string path = std::getenv("PATH");
    ::setenv("PATH", (pipes_ + ":" + path).c_str(), 1);
    SpawnOptions options;
    options.command = {"nvidia-cuda-mps-control", "-f"};
    options.environment["CUDA_MPS_PIPE_DIRECTORY"] = pipes_;
    Process daemon = Process::spawn(options).value();
    ASSERT_TRUE(until([&] {
        std::ifstream pid(folder / "nvidia-cuda-mps-control.pid");
        int number = 0;
        return static_cast<bool>(pid >> number);
    }));
    start("exec sleep 600", 1);
    std::ofstream(folder / "clients.txt") << ref_.pid << '\n';
    std::ofstream(folder / "refuse").close();
    signal(SIGKILL);
    ASSERT_TRUE(until([&] { return refused_.has_value(); }));
    EXPECT_NE(refused_->find("exclusive work"), std::string::npos) << *refused_;
    EXPECT_TRUE(is_alive({ref_.pid, ref_.start_ticks}));
    std::filesystem::remove(folder / "refuse");
    signal(SIGKILL);
    EXPECT_TRUE(until([&] { return ended_.has_value(); }));
    (void)daemon.signal_group(SIGKILL);
    ::setenv("PATH", path.c_str(), 1);
    std::filesystem::remove_all(folder);
}

} // namespace berth
