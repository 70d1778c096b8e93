// SPDX-License-Identifier: Apache-2.0
// Real child processes: what they inherit, how their end is told, whom a signal reaches.
#include "base/process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

int wait_for_end(Process& process) {
    for (;;) {
        pollfd waiting{process.pidfd(), POLLIN, 0};
        if (::poll(&waiting, 1, 10'000) != 1)
            return -1;
        if (auto status = process.try_wait())
            return *status;
    }
}

Result<Process> shell(const std::string& script, SpawnOptions options = {}) {
    options.command = {"sh", "-c", script};
    return Process::spawn(options);
}

TEST(Process, TellsHowItEnded) {
    auto seven = shell("exit 7");
    ASSERT_TRUE(seven) << seven.error().message;
    EXPECT_EQ(describe_exit(wait_for_end(*seven)), "exit code 7");
    auto killed = shell("kill -KILL $$");
    EXPECT_EQ(describe_exit(wait_for_end(*killed)), "killed by SIGKILL");
}

Result<Process> start(std::vector<std::string> command, std::string folder = {}) {
    SpawnOptions options;
    options.command = std::move(command);
    options.working_directory = std::move(folder);
    return Process::spawn(options);
}

TEST(Process, SaysAtOnceThatAProgramCannotBeStarted) {
    auto missing = start({"berth-no-such-program"});
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
    auto no_path = start({"/nonexistent/program"});
    ASSERT_FALSE(no_path);
    EXPECT_NE(no_path.error().message.find("/nonexistent/program"), std::string::npos);
    EXPECT_FALSE(start({"/etc/passwd"}));
    EXPECT_FALSE(start({}));
    EXPECT_FALSE(start({"sh"}, "/nonexistent"));
}

TEST(Process, GetsItsEnvironmentFolderAndLog) {
    std::string pattern = (std::filesystem::temp_directory_path() / "berth-proc-XXXXXX").string();
    std::string folder = ::mkdtemp(pattern.data());
    SpawnOptions options;
    options.environment = {{"BERTH_TEST_VALUE", "a b"}};
    options.working_directory = folder;
    options.log_path = folder + "/log";
    auto process = shell("echo \"$BERTH_TEST_VALUE\"; pwd; echo on stderr >&2", options);
    ASSERT_TRUE(process) << process.error().message;
    wait_for_end(*process);
    EXPECT_EQ(*read_file(folder + "/log"), "a b\n" + folder + "\non stderr\n");
    std::filesystem::remove_all(folder);
}

// Also when the numbers cross: 3 -> 4 and 4 -> 3 at the same time.
TEST(Process, GetsDescriptorsAtTheirNumbersAndNoOthers) {
    UniqueFd a(::memfd_create("a", MFD_CLOEXEC));
    UniqueFd b(::memfd_create("b", MFD_CLOEXEC));
    UniqueFd out(::memfd_create("out", MFD_CLOEXEC));
    SpawnOptions options;
    options.inherit_fds = {{a.get(), 4}, {b.get(), 3}, {out.get(), 5}};
    auto process = shell("for n in 3 4; do readlink /proc/$$/fd/$n; done >&5; "
                         "ls /proc/$$/fd | wc -w >&5",
                         options);
    ASSERT_TRUE(process) << process.error().message;
    EXPECT_EQ(wait_for_end(*process), 0);
    auto written = out.reopen(O_RDONLY);
    char text[256] = {};
    ASSERT_GT(::read(written->get(), text, sizeof text - 1), 0);
    std::string lines = text;
    EXPECT_NE(lines.find("memfd:b (deleted)\n/memfd:a (deleted)\n"), std::string::npos) << lines;
}

TEST(Process, ASignalToTheGroupReachesGrandchildren) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    SpawnOptions options;
    options.inherit_fds = {{write_end.get(), 3}};
    auto process = shell("sleep 60 & sleep 60", options);
    ASSERT_TRUE(process);
    write_end.reset();
    ASSERT_TRUE(process->signal_group(SIGKILL));
    EXPECT_EQ(describe_exit(wait_for_end(*process)), "killed by SIGKILL");
    // End of file: no process holds the other end any more.
    pollfd waiting{read_end.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
    char byte = 0;
    EXPECT_EQ(::read(read_end.get(), &byte, 1), 0);
}

TEST(Process, IsAdoptedByWhoItIsNotByItsNumber) {
    auto process = shell("sleep 60");
    ASSERT_TRUE(process);
    ProcessId id = process->id();
    EXPECT_GT(id.start_ticks, 0U);
    EXPECT_TRUE(is_alive(id));
    EXPECT_FALSE(is_alive({id.pid, id.start_ticks + 1}));
    EXPECT_EQ(Process::adopt({id.pid, id.start_ticks + 1}).error().code, ErrorCode::kNotFound);
    auto adopted = Process::adopt(id);
    ASSERT_TRUE(adopted) << adopted.error().message;
    EXPECT_FALSE(adopted->try_wait());
    ASSERT_TRUE(adopted->signal(SIGKILL));
    EXPECT_EQ(wait_for_end(*adopted), 0); // not its child: that it ended is all one learns
    EXPECT_FALSE(is_alive(id));           // a zombie is not alive
    EXPECT_EQ(describe_exit(wait_for_end(*process)), "killed by SIGKILL");
    EXPECT_FALSE(Process::adopt(id));
}

// The middle one starts the last one, says its pid, and is killed.
TEST(Process, ThatEndsWithItsParentEndsHoweverThatIsKilled) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const pid_t middle = ::fork();
    ASSERT_GE(middle, 0);
    if (middle == 0) {
        SpawnOptions options;
        options.command = {"sleep", "600"};
        options.ends_with_parent = true;
        auto last = Process::spawn(options);
        const int pid = last ? last->id().pid : 0;
        (void)!::write(write_end.get(), &pid, sizeof pid);
        for (;;)
            ::pause();
    }
    int pid = 0;
    ASSERT_EQ(::read(read_end.get(), &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    ASSERT_NE(pid, 0);
    auto id = process_id(pid);
    ASSERT_TRUE(id) << id.error().message;
    auto last = Process::adopt(*id);
    ASSERT_TRUE(last) << last.error().message;
    ASSERT_EQ(::kill(pid, SIGSTOP), 0); // a stopped one ends too
    ASSERT_EQ(::kill(middle, SIGKILL), 0);
    pollfd waiting{last->pidfd(), POLLIN, 0};
    const bool ended = ::poll(&waiting, 1, 10'000) == 1;
    EXPECT_TRUE(ended);
    if (!ended)
        (void)last->signal(SIGKILL);
    EXPECT_EQ(::waitpid(middle, nullptr, 0), middle);
}

TEST(Process, WhoseStatusAnotherTookIsNotTakenForASuccess) {
    auto process = shell("exit 0");
    ASSERT_TRUE(process);
    int status = -1;
    ASSERT_EQ(::waitpid(process->id().pid, &status, 0), process->id().pid);
    ASSERT_EQ(status, 0);
    status = wait_for_end(*process);
    EXPECT_EQ(status, kUnknownWaitStatus);
    EXPECT_FALSE(WIFEXITED(status) || WIFSIGNALED(status));
    EXPECT_EQ(describe_exit(status), "ended, it is not known how");
}

TEST(Process, KnowsItsOwnFolder) {
    EXPECT_TRUE(std::filesystem::exists(program_directory() + "/base_test"));
}

} // namespace
} // namespace berth
