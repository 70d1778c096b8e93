// SPDX-License-Identifier: Apache-2.0
// Goal: a process that is forked from the zygote is in nothing different from one that was
// executed, and where that cannot be, none is forked. Method: a probe that is a zygote of itself
// and writes down what it finds, started both ways; zygotes that are killed, stopped and spoilt.
#include "scheduler/act/zygote_link.h"

#include "base/hash.h"
#include "engine_shim/zygote/checks.h"
#include "engine_shim/zygote/request.h"
#include "scheduler/act/find_process.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <linux/close_range.h>
#include <optional>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace berth {
namespace {

namespace fs = std::filesystem;
using Newborn = Result<ZygoteLink::Newborn>;
constexpr std::chrono::seconds kPatience(60);

class ZygoteTest : public testing::Test {
  protected:
    ZygoteTest() {
        std::string name = "/tmp/zygote-test-XXXXXX";
        folder_ = ::mkdtemp(name.data());
        settings_.program = probe_ = BERTH_PROBE;
        settings_.log_path = folder_ / "zygote.log";
    }
    ~ZygoteTest() override {
        link_.reset();
        ::unsetenv("BERTH_PROBE_PLANT");
        while (::waitpid(-1, nullptr, 0) > 0) { // all end by themselves now
        }
        fs::remove_all(folder_);
    }

    bool until(const std::function<bool()>& condition) {
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (!condition() && std::chrono::steady_clock::now() < end) {
            io_.restart();
            io_.run_for(std::chrono::milliseconds(10));
        }
        return condition();
    }
    ZygoteLink& link() {
        if (!link_)
            link_.emplace(io_, settings_);
        return *link_;
    }
    bool ready() {
        link().expect();
        return until([&] { return link().report().state == "ready"; });
    }
    SpawnOptions options(std::vector<std::string> arguments, const std::string& log) {
        SpawnOptions made;
        made.command = {probe_};
        made.command.insert(made.command.end(), arguments.begin(), arguments.end());
        made.environment["GOMP_SPINCOUNT"] = "0";
        made.environment["BERTH_TOKEN"] = token_;
        made.environment["PATH"] = "/its/own:/bin";
        made.working_directory = folder_;
        made.log_path = folder_ / log;
        return made;
    }
    Newborn fork(const SpawnOptions& asked) {
        std::optional<Newborn> born;
        link().fork(asked, [&](Newborn made) { born = std::move(made); });
        EXPECT_TRUE(until([&] { return born.has_value(); }));
        return born ? std::move(*born) : Newborn(fail(ErrorCode::kInternal, "no answer"));
    }
    std::string end_of(Process& process) {
        std::optional<int> status;
        EXPECT_TRUE(until([&] { return status || (status = process.try_wait()); }));
        return describe_exit(status.value_or(kUnknownWaitStatus));
    }
    std::string facts(const std::string& name) {
        return read_file(folder_ / name).value_or("not written");
    }

    boost::asio::io_context io_;
    fs::path folder_;
    std::string probe_;
    const std::string token_ = random_hex(16);
    ZygoteLink::Settings settings_;
    std::optional<ZygoteLink> link_;
};

// The file's name is in the facts, so both write to the same one, one after the other.
TEST_F(ZygoteTest, AForkedProcessFindsWhatAnExecutedOneFinds) {
    // What whoever runs the tests has left open only those inherit who are executed.
    ASSERT_EQ(::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC), 0);
    ASSERT_TRUE(ready()) << link().report().why;
    const SpawnOptions asked = options({"facts", "facts.txt", "7"}, "engine.log");
    auto executed = Process::spawn(asked);
    ASSERT_TRUE(executed) << executed.error().message;
    EXPECT_EQ(end_of(*executed), "exit code 7");
    const std::string expected = facts("facts.txt");
    fs::remove(folder_ / "facts.txt");
    EXPECT_EQ(link().why_not(asked), std::nullopt);
    auto born = fork(asked);
    ASSERT_TRUE(born) << born.error().message;
    born->let_go();
    born->waiting.reset();
    EXPECT_EQ(end_of(born->process), "exit code 7");
    EXPECT_EQ(facts("facts.txt"), expected);
    EXPECT_NE(expected.find("leader true true"), std::string::npos) << expected;
    EXPECT_NE(expected.find("threads others 1 own 0 self 0"), std::string::npos) << expected;
    EXPECT_EQ(facts("engine.log"), "a line of facts\na line of facts\n");
}

// As where descriptors, processes or memory are short for a while.
TEST_F(ZygoteTest, OneThatCannotBeExecutedIsTriedAgain) {
    link().expect();
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ASSERT_GE(next, 0);
    ::close(next);
    const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool told =
        until([&] { return link().report().why.find("cannot be started") != std::string::npos; });
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_TRUE(told) << link().report().why;
    EXPECT_EQ(link().report().state, "absent");
    EXPECT_TRUE(until([&] { return link().report().state == "ready"; })) << link().report().why;
}

TEST_F(ZygoteTest, NoneIsExecutedAfterItsTimeHasComeAsAllIsStopped) {
    boost::asio::steady_timer first(io_, std::chrono::milliseconds(200));
    first.async_wait([this](boost::system::error_code) { link().stop(); });
    link().expect();
    std::this_thread::sleep_for(std::chrono::milliseconds(500)); // both are due in one turn
    io_.run_for(std::chrono::milliseconds(50));
    EXPECT_EQ(link().report().state, "unfit");
    EXPECT_EQ(link().report().pid, 0);
}

TEST_F(ZygoteTest, OneThatIsDiscardedEndsAndIsReaped) {
    ASSERT_TRUE(ready());
    auto born = fork(options({"facts", "facts.txt", "0"}, "engine.log"));
    ASSERT_TRUE(born) << born.error().message;
    const int pid = born->process.id().pid;
    link().discard(std::move(*born));
    EXPECT_TRUE(until([&] { return ::kill(pid, 0) != 0; })) << "not even a zombie is left";
    EXPECT_FALSE(fs::exists(folder_ / "facts.txt"));
}

TEST_F(ZygoteTest, AForkedProcessHasTheLimitsThatAnExecutedOneWouldHaveNow) {
    ASSERT_TRUE(ready()) << link().report().why;
    rlimit files{}, core{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
    ASSERT_EQ(::getrlimit(RLIMIT_CORE, &core), 0);
    const rlimit fewer{files.rlim_cur - 1, files.rlim_max};
    const rlimit other{core.rlim_cur == 0 ? std::min<rlim_t>(core.rlim_max, 4096) : 0,
                       core.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &fewer), 0);
    ASSERT_EQ(::setrlimit(RLIMIT_CORE, &other), 0);
    auto born = fork(options({"facts", "facts.txt", "0"}, "engine.log"));
    ::setrlimit(RLIMIT_NOFILE, &files);
    ::setrlimit(RLIMIT_CORE, &core);
    ASSERT_TRUE(born) << born.error().message;
    born->let_go();
    EXPECT_EQ(end_of(born->process), "exit code 0");
    EXPECT_NE(facts("facts.txt")
                  .find("limits " + std::to_string(fewer.rlim_cur) + " " +
                        std::to_string(files.rlim_max) + " " + std::to_string(other.rlim_cur)),
              std::string::npos)
        << facts("facts.txt");
}

TEST_F(ZygoteTest, RunsNothingBeforeItIsLetGoAndEndsWhenItIsGivenUp) {
    ASSERT_TRUE(ready());
    auto born = fork(options({"facts", "facts.txt", "0"}, "engine.log"));
    ASSERT_TRUE(born) << born.error().message;
    born->waiting.reset();
    EXPECT_EQ(end_of(born->process), "exit code 127");
    EXPECT_FALSE(fs::exists(folder_ / "facts.txt"));
}

TEST_F(ZygoteTest, IsFoundByItsTokenBeforeItRuns) {
    ASSERT_TRUE(ready());
    auto born = fork(options({"wait", "facts.txt"}, "engine.log"));
    ASSERT_TRUE(born) << born.error().message;
    const auto found = find_process_by_token(sha256_hex(token_));
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, born->process.id());
    born->let_go();
    EXPECT_TRUE(until([&] { return fs::exists(folder_ / "facts.txt"); }));
    EXPECT_EQ(find_process_by_token(sha256_hex(token_)), found);
    ASSERT_TRUE(born->process.signal_group(SIGTERM));
    EXPECT_EQ(end_of(born->process), "killed by SIGTERM");
}

TEST_F(ZygoteTest, SignalsThatTheLibraryRaisesReachTheForkedThread) {
    ASSERT_TRUE(ready());
    auto born = fork(options({"raise", std::to_string(SIGABRT)}, "engine.log"));
    ASSERT_TRUE(born) << born.error().message;
    born->let_go();
    EXPECT_EQ(end_of(born->process), "killed by SIGABRT");
}

TEST_F(ZygoteTest, ForkedOnesOutliveTheZygoteAndAreReapedHere) {
    ASSERT_TRUE(ready());
    auto born = fork(options({"wait", "facts.txt"}, "engine.log"));
    ASSERT_TRUE(born) << born.error().message;
    born->let_go();
    EXPECT_TRUE(until([&] { return fs::exists(folder_ / "facts.txt"); }));
    const int first = link().report().pid;
    ASSERT_EQ(::kill(first, SIGKILL), 0);
    EXPECT_TRUE(until([&] { return link().report().state == "absent"; }));
    EXPECT_NE(link().report().why.find("killed by SIGKILL"), std::string::npos);
    EXPECT_TRUE(link().why_not(options({"facts", "x", "0"}, "engine.log")));
    EXPECT_FALSE(born->process.try_wait());
    EXPECT_TRUE(until([&] { return link().report().state == "ready"; })) << "a new one is started";
    EXPECT_NE(link().report().pid, first);
    EXPECT_EQ(link().report().restarts, 1u);
    ASSERT_TRUE(born->process.signal(SIGUSR1));
    EXPECT_EQ(end_of(born->process), "killed by SIGUSR1");
}

TEST_F(ZygoteTest, OneThatStandsStillIsReplacedAndWhatItForksLaterNeverRuns) {
    ASSERT_TRUE(ready());
    const int first = link().report().pid;
    ASSERT_EQ(::kill(first, SIGSTOP), 0);
    auto born = fork(options({"facts", "facts.txt", "0"}, "engine.log"));
    ASSERT_FALSE(born);
    EXPECT_EQ(born.error().code, ErrorCode::kDeadlineExceeded) << born.error().message;
    EXPECT_TRUE(
        until([&] { return link().report().state == "ready" && link().report().pid != first; }));
    EXPECT_FALSE(fs::exists(folder_ / "facts.txt"));
    EXPECT_FALSE(find_process_by_token(sha256_hex(token_)));
}

TEST_F(ZygoteTest, OneThatHasThreadsAtItsStartIsNone) {
    ::setenv("BERTH_PROBE_PLANT", "thread", 1);
    link().expect();
    EXPECT_TRUE(until([&] { return link().report().state == "unfit"; }));
    EXPECT_NE(link().report().why.find("2 threads"), std::string::npos) << link().report().why;
    const auto why = link().why_not(options({"facts", "x", "0"}, "engine.log"));
    EXPECT_NE(why.value_or("").find("2 threads"), std::string::npos);
}

TEST_F(ZygoteTest, OneThatGetsAThreadLaterRefusesAndIsReplaced) {
    ::setenv("BERTH_PROBE_PLANT", "late", 1);
    ASSERT_TRUE(ready());
    const int first = link().report().pid;
    ASSERT_EQ(::kill(first, SIGUSR1), 0);
    EXPECT_TRUE(until([&] {
        const std::string tasks = "/proc/" + std::to_string(first) + "/task";
        return std::distance(fs::directory_iterator(tasks), fs::directory_iterator()) == 2;
    }));
    auto born = fork(options({"facts", "facts.txt", "0"}, "engine.log"));
    ASSERT_FALSE(born);
    EXPECT_NE(born.error().message.find("2 threads"), std::string::npos) << born.error().message;
    EXPECT_TRUE(
        until([&] { return link().report().state == "ready" && link().report().pid != first; }));
}

TEST_F(ZygoteTest, WhatItsPreloadSaysIsWhyThereIsNone) {
    ::setenv("BERTH_PROBE_PLANT", "fail", 1);
    link().expect();
    EXPECT_TRUE(until([&] { return link().report().state == "unfit"; }));
    EXPECT_NE(link().report().why.find("as it was told to"), std::string::npos);
}

TEST_F(ZygoteTest, AStartThatCannotBecomeWhatWasAskedForSaysWhyAndIsReaped) {
    ASSERT_TRUE(ready());
    SpawnOptions asked = options({"facts", "facts.txt", "0"}, "engine.log");
    asked.working_directory = folder_ / "missing";
    auto born = fork(asked);
    ASSERT_FALSE(born);
    EXPECT_NE(born.error().message.find("missing"), std::string::npos) << born.error().message;
    EXPECT_TRUE(until([] { // the zygote is the one child
        siginfo_t info{};
        return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
    }));
    EXPECT_TRUE(fork(options({"facts", "facts.txt", "0"}, "engine.log"))) << "the zygote goes on";
}

TEST_F(ZygoteTest, EveryStartAskedForAtOnceIsAnswered) {
    ASSERT_TRUE(ready());
    std::vector<Newborn> born;
    for (int i = 0; i < 12; ++i)
        link().fork(options({"facts", "facts.txt", std::to_string(i)}, "engine.log"),
                    [&](Newborn made) { born.push_back(std::move(made)); });
    EXPECT_TRUE(until([&] { return born.size() == 12; }));
    for (int i = 0; i < 12; ++i) {
        auto& one = born[static_cast<size_t>(i)];
        ASSERT_TRUE(one) << one.error().message;
        one->let_go();
    }
    std::vector<std::string> ends;
    for (Newborn& one : born)
        ends.push_back(end_of(one->process));
    std::ranges::sort(ends);
    EXPECT_EQ(std::ranges::unique(ends).size(), 0u) << "each its own exit code";
    EXPECT_EQ(link().report().forks, 12u);
}

TEST_F(ZygoteTest, MoreStartsThanItGetsDoneInTimeAreLeftToExec) {
    ASSERT_TRUE(ready());
    const int first = link().report().pid;
    size_t refused = 0, born = 0;
    for (int i = 0; i < 70; ++i)
        link().fork(options({"facts", "facts.txt", "0"}, "engine.log"),
                    [&](Newborn made) { (made ? born : refused) += 1; });
    EXPECT_EQ(refused, 6u) << "at once: nothing has run yet";
    EXPECT_TRUE(until([&] { return born == 64; }));
    EXPECT_EQ(link().report().pid, first) << "it is not taken for one that stands still";
}

TEST_F(ZygoteTest, EndsWithItsDaemon) {
    ASSERT_TRUE(ready());
    const ProcessId zygote = process_id(link().report().pid).value();
    link_.reset();
    EXPECT_TRUE(until([&] { return !is_alive(zygote); }));
}

TEST_F(ZygoteTest, AProgramThatWasReplacedIsExecutedUntilANewZygoteIsThere) {
    const fs::path copy = folder_ / "program";
    fs::copy_file(probe_, copy);
    settings_.program = probe_ = copy;
    ASSERT_TRUE(ready());
    const int first = link().report().pid;
    fs::copy_file(copy, folder_ / "newer");
    fs::rename(folder_ / "newer", copy);
    const SpawnOptions asked = options({"facts", "facts.txt", "0"}, "engine.log");
    EXPECT_NE(link().why_not(asked).value_or("").find("has changed"), std::string::npos);
    EXPECT_TRUE(
        until([&] { return link().report().state == "ready" && link().report().pid != first; }));
    EXPECT_EQ(link().why_not(asked), std::nullopt);
}

TEST_F(ZygoteTest, WhereThereIsNoneTheReasonIsGiven) {
    settings_.off = "it was switched off";
    const SpawnOptions asked = options({"facts", "x", "0"}, "engine.log");
    EXPECT_EQ(link().why_not(asked), "it was switched off");
    link().expect();
    EXPECT_EQ(link().report().state, "off");
}

TEST_F(ZygoteTest, AnotherProgramIsExecuted) {
    ASSERT_TRUE(ready());
    SpawnOptions asked = options({}, "engine.log");
    for (const char* program : {"/bin/true", "setpriv", "/nonexistent/program"}) {
        asked.command = {program};
        EXPECT_NE(link().why_not(asked).value_or("").find(program), std::string::npos);
    }
}

SpawnOptions with(const std::string& name, const std::string& text) {
    SpawnOptions made;
    made.command = {"/program"};
    made.environment[name] = text;
    return made;
}

TEST(ForkRules, WhatLibrariesReadAsTheyAreLoadedMustBeTheZygotes) {
    SpawnOptions zygote;
    zygote.environment["GOMP_SPINCOUNT"] = "0";
    const std::vector<std::string> environment = environment_of(zygote);
    for (const char* name :
         {"OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "LD_PRELOAD", "KMP_BLOCKTIME", "MKL_NUM_THREADS",
          "MALLOC_ARENA_MAX", "PYTORCH_ALLOC_CONF", "CUDA_MODULE_LOADING", "GLIBC_TUNABLES"}) {
        SpawnOptions asked = with(name, "its-own");
        asked.environment["GOMP_SPINCOUNT"] = "0";
        EXPECT_NE(why_not_forked(asked, environment).value_or("").find(name), std::string::npos);
    }
    for (const char* name :
         {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "BERTH_TOKEN", "PATH", "HF_HOME"}) {
        SpawnOptions asked = with(name, "its-own");
        asked.environment["GOMP_SPINCOUNT"] = "0";
        EXPECT_EQ(why_not_forked(asked, environment), std::nullopt) << name;
    }
    // One that the zygote has and the other has not.
    EXPECT_NE(why_not_forked(with("A", "b"), environment).value_or("").find("GOMP_SPINCOUNT"),
              std::string::npos);
}

TEST(ForkRules, WordsThatDoNotFitAreExecuted) {
    const std::vector<std::string> environment = environment_of({});
    SpawnOptions asked = with("A", std::string(zygote::kEnvironmentRoom, 'x'));
    EXPECT_NE(why_not_forked(asked, environment).value_or("").find("environment of"),
              std::string::npos);
    asked = with("A", "b");
    asked.command.push_back(std::string(zygote::kArgumentRoom, 'x'));
    EXPECT_NE(why_not_forked(asked, environment).value_or("").find("command of"),
              std::string::npos);
}

TEST(ZygoteChecks, AThreadOrAnOpenGpuIsSeen) {
    std::string name = "/tmp/zygote-checks-XXXXXX";
    const fs::path folder = ::mkdtemp(name.data());
    fs::create_directory(folder / "task");
    fs::create_directory(folder / "task" / "100");
    EXPECT_TRUE(zygote::check_single_task(folder / "task"));
    fs::create_directory(folder / "task" / "101");
    const auto two = zygote::check_single_task(folder / "task");
    ASSERT_FALSE(two);
    EXPECT_NE(two.error().message.find("2 threads"), std::string::npos);
    EXPECT_FALSE(zygote::check_single_task(folder / "missing"));

    fs::create_directory(folder / "fd");
    fs::create_symlink("/dev/null", folder / "fd" / "0");
    fs::create_symlink("/dev/nvram", folder / "fd" / "1");
    EXPECT_TRUE(zygote::check_no_gpu_open(folder / "fd"));
    fs::create_symlink("/dev/nvidia-uvm", folder / "fd" / "7");
    const auto open = zygote::check_no_gpu_open(folder / "fd");
    ASSERT_FALSE(open);
    EXPECT_NE(open.error().message.find("/dev/nvidia-uvm open as descriptor 7"), std::string::npos);
    EXPECT_FALSE(zygote::check_no_gpu_open(folder / "missing"));
    fs::remove_all(folder);
}

TEST(ZygoteRequest, ComesBackAsItWasWhateverIsInIt) {
    zygote::Request request;
    request.argv = {"/a program", "", "\xff\n\"", "x=y"};
    request.environment = {"A=", "B=\xfe\n", "=odd"};
    request.working_directory = "/tmp/some where";
    request.new_session = false;
    request.limits = {{7, 1024, UINT64_MAX}, {4, 0, 0}};
    const std::string bytes = zygote::encode(request);
    const auto back = zygote::decode(bytes);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(back->argv, request.argv);
    EXPECT_EQ(back->environment, request.environment);
    EXPECT_EQ(back->working_directory, request.working_directory);
    EXPECT_EQ(back->log_path, "");
    EXPECT_FALSE(back->new_session);
    EXPECT_EQ(back->limits, request.limits);
    for (size_t length = 0; length < bytes.size(); ++length) // cut short it is never more
        if (auto part = zygote::decode(std::string_view(bytes).substr(0, length)))
            EXPECT_LE(part->environment.size(), request.environment.size() - 1);
    EXPECT_FALSE(zygote::decode(std::string_view("\0\0001\0\0009999\0", 11)));
    EXPECT_FALSE(zygote::decode(std::string_view("\0\0001\0007 x 1 \0001\0a\0", 15)));
}

TEST(ZygoteRequest, AnswersComeBackAndOthersAreRefused) {
    using Kind = zygote::Answer::Kind;
    for (const zygote::Answer& answer :
         {zygote::Answer{Kind::kBorn, 17, ""}, zygote::Answer{Kind::kFailed, 18, "no such folder"},
          zygote::Answer{Kind::kRefused, 0, "two threads"}}) {
        const auto back = zygote::decode_answer(zygote::encode(answer));
        ASSERT_TRUE(back) << back.error().message;
        EXPECT_EQ(back->kind, answer.kind);
        EXPECT_EQ(back->pid, answer.pid);
        EXPECT_EQ(back->words, answer.words);
    }
    for (const char* text : {"", "born", "born x", "born -3 ", "failed 0 x", "hello 7"})
        EXPECT_FALSE(zygote::decode_answer(text)) << text;
}

} // namespace
} // namespace berth
