// SPDX-License-Identifier: Apache-2.0
// Goal: MPS's control daemon is there where the policy asks for it, is found again, goes when
// nobody needs it, and its absence is told with its reason. Method: a stand-in for the control
// program (tests/system/fake_mps_control.sh), which keeps what it was asked.
#include "scheduler/act/mps_daemon.h"

#include "base/unique_fd.h"

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace berth {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class MpsDaemonTest : public testing::Test {
  protected:
    MpsDaemonTest() {
        fs::create_directories(folder_ / "pipes");
        fs::create_symlink(BERTH_FAKE_MPS, folder_ / "nvidia-cuda-mps-control");
        clients("");
        settings_.pipe_directory = folder_ / "pipes";
        settings_.log_directory = folder_ / "logs";
        settings_.program = folder_ / "nvidia-cuda-mps-control";
        settings_.has_gpu = true;
    }
    ~MpsDaemonTest() override {
        if (const int pid = pid_of_daemon(); pid > 0)
            ::kill(pid, SIGKILL);
        fs::remove_all(folder_);
    }
    void clients(const std::string& pids) {
        std::ofstream(folder_ / "pipes/clients.txt") << pids << "\n";
    }
    int pid_of_daemon() const {
        int pid = 0;
        std::ifstream(folder_ / "pipes/nvidia-cuda-mps-control.pid") >> pid;
        return pid;
    }
    std::string asked() const { return read_file(folder_ / "pipes/asked.txt").value_or(""); }
    // Until that holds, or ten seconds are over.
    template <typename Condition>
    bool run_until(Condition condition) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (!condition() && std::chrono::steady_clock::now() < end)
            context_.run_for(std::chrono::milliseconds(20));
        return condition();
    }

    fs::path folder_ = fs::temp_directory_path() / ("mps-daemon-" + std::to_string(::getpid()));
    boost::asio::io_context context_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
        context_.get_executor()};
    MpsDaemon::Settings settings_;
    int changes_ = 0;
};

TEST_F(MpsDaemonTest, IsStartedWhenItIsWantedAndItsClientsKnowWhere) {
    MpsDaemon mps(context_, settings_, [this] { ++changes_; });
    EXPECT_FALSE(mps.ready());
    mps.want(true);
    EXPECT_TRUE(mps.is_starting());
    ASSERT_TRUE(run_until([&] { return mps.ready(); })) << mps.why();
    EXPECT_EQ(changes_, 1);
    const auto capped = mps.environment(0.25);
    EXPECT_EQ(capped.at("CUDA_MPS_PIPE_DIRECTORY"), settings_.pipe_directory);
    EXPECT_EQ(capped.at("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "25");
    EXPECT_FALSE(mps.environment(1.0).contains("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
}

TEST_F(MpsDaemonTest, LivesOnWithoutBerthdAndIsFoundByTheNext) {
    {
        MpsDaemon first(context_, settings_, [] {});
        first.want(true);
        ASSERT_TRUE(run_until([&] { return first.ready(); })) << first.why();
    }
    const int pid = pid_of_daemon();
    ASSERT_EQ(::kill(pid, 0), 0);
    MpsDaemon next(context_, settings_, [] {});
    next.want(true);
    ASSERT_TRUE(run_until([&] { return next.ready(); })) << next.why();
    EXPECT_EQ(pid_of_daemon(), pid);
}

TEST_F(MpsDaemonTest, StaysWhileItHasClientsAndEndsWhenNobodyWantsIt) {
    clients("77");
    MpsDaemon mps(context_, settings_, [] {});
    mps.want(true);
    ASSERT_TRUE(run_until([&] { return mps.ready(); })) << mps.why();
    mps.want(false);
    ASSERT_TRUE(run_until([&] { return asked().find("get_client_list") != std::string::npos; }));
    EXPECT_THAT(asked(), testing::Not(HasSubstr("quit")));
    EXPECT_TRUE(mps.ready());
    clients("");
    EXPECT_TRUE(run_until([&] { return !mps.ready(); }));
    EXPECT_THAT(asked(), HasSubstr("quit"));
}

TEST_F(MpsDaemonTest, WhereThereIsNoProgramTheReasonIsTold) {
    settings_.program = folder_ / "no-such-program";
    MpsDaemon mps(context_, settings_, [this] { ++changes_; });
    mps.want(true);
    ASSERT_TRUE(run_until([&] { return changes_ > 0; }));
    EXPECT_FALSE(mps.ready());
    EXPECT_THAT(mps.why(), HasSubstr("no-such-program"));
}

TEST_F(MpsDaemonTest, AStartThatNobodyWantsAnyMoreIsToldAllTheSame) {
    settings_.program = folder_ / "no-such-program";
    MpsDaemon mps(context_, settings_, [this] { ++changes_; });
    mps.want(true);
    mps.want(false);
    ASSERT_TRUE(mps.is_starting());
    EXPECT_TRUE(run_until([&] { return changes_ > 0; })) << "engines wait for it";
    EXPECT_FALSE(mps.is_starting());
    EXPECT_EQ(changes_, 1);
}

TEST_F(MpsDaemonTest, WhereThereIsNoGpuItIsNotEvenTried) {
    settings_.has_gpu = false;
    MpsDaemon mps(context_, settings_, [this] { ++changes_; });
    mps.want(true);
    EXPECT_EQ(changes_, 1);
    EXPECT_THAT(mps.why(), HasSubstr("no NVIDIA GPU"));
    EXPECT_EQ(pid_of_daemon(), 0);
}

TEST_F(MpsDaemonTest, ItsEndIsSeenAndTold) {
    MpsDaemon mps(context_, settings_, [this] { ++changes_; });
    mps.want(true);
    ASSERT_TRUE(run_until([&] { return mps.ready(); })) << mps.why();
    ::kill(pid_of_daemon(), SIGKILL);
    ASSERT_TRUE(run_until([&] { return !mps.ready(); }));
    EXPECT_EQ(changes_, 2);
    EXPECT_THAT(mps.why(), HasSubstr("has ended"));
}

} // namespace
} // namespace berth
