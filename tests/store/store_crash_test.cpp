// SPDX-License-Identifier: Apache-2.0
// Goal: a killed writer leaves every acknowledged batch whole and no batch in part, and a full disk
// is said so. Method: a forked child writes until it is killed (or until its small file system is
// full) and tells through a pipe what was acknowledged.
#include "base/unique_fd.h"
#include "scheduler/store/store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

std::string new_directory() {
    std::string pattern = ::testing::TempDir() + "berth-crash-XXXXXX";
    return ::mkdtemp(pattern.data()) == nullptr ? std::string() : pattern;
}

// Each batch moves the same number into an instance and an operation, beside an event.
std::vector<StoreWrite> numbered_batch(int64_t number) {
    InstanceRecord instance;
    instance.name = "chat";
    instance.restarts = number;
    OperationRecord operation;
    operation.id = "op-1";
    operation.bytes_freed = number;
    EventRecord event{number, number, "Instance", "chat", "Step", std::string(200, 'm')};
    return {instance, operation, event};
}

[[noreturn]] void write_until_killed(const std::string& directory, int64_t first, int out) {
    auto opened = Store::open(directory);
    if (!opened)
        ::_exit(2);
    for (int64_t number = first;; ++number) {
        std::promise<bool> written;
        opened->store->post(numbered_batch(number), Durability::kIntent,
                            [&](Status status) { written.set_value(status.has_value()); });
        if (!written.get_future().get())
            ::_exit(3);
        if (::write(out, &number, sizeof number) != sizeof number)
            ::_exit(4);
    }
}

TEST(StoreCrashTest, AfterSigkillEachAcknowledgedBatchIsThereWhole) {
    std::string directory = new_directory();
    ASSERT_FALSE(directory.empty());
    std::minstd_rand random(20240501);
    int64_t acknowledged = 0;
    for (int round = 0; round < 12; ++round) {
        int ends[2];
        ASSERT_EQ(::pipe(ends), 0);
        pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0)
            write_until_killed(directory, acknowledged + 1, ends[1]);
        ::close(ends[1]);
        int64_t number = 0;
        int until = 1 + static_cast<int>(random() % 20);
        for (int i = 0; i < until; ++i) {
            ASSERT_EQ(::read(ends[0], &number, sizeof number), ssize_t{sizeof number});
            acknowledged = number;
        }
        ::usleep(static_cast<useconds_t>(random() % 3000));
        ::kill(child, SIGKILL);
        while (::read(ends[0], &number, sizeof number) == ssize_t{sizeof number})
            acknowledged = number;
        ::close(ends[0]);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << WEXITSTATUS(status);

        auto opened = Store::open(directory);
        ASSERT_TRUE(opened) << opened.error().message;
        EXPECT_TRUE(opened->warning.empty()) << opened->warning;
        const StoredState& state = opened->state;
        ASSERT_EQ(state.instances.size(), 1U);
        ASSERT_EQ(state.operations.size(), 1U);
        int64_t stored = state.instances[0].restarts;
        EXPECT_EQ(state.operations[0].bytes_freed, stored) << "one half of a batch";
        EXPECT_EQ(state.last_revision, stored) << "one half of a batch";
        EXPECT_GE(stored, acknowledged) << "an acknowledged batch is lost";
        EXPECT_LE(stored, acknowledged + 1) << "one batch at most was under way";
        acknowledged = stored;
    }
    std::filesystem::remove_all(directory);
}

// Exit codes of the child that fills its disk.
enum : int {
    kAllWritten = 0,
    kNoMount = 10,
    kNoStore = 11,
    kNeverFull = 12,
    kOtherError = 13,
    kLost = 14,
    kReadFailed = 15
};

// On a file system of 4 MiB: fills it, sees the batches wait, makes room, and finds them all.
[[noreturn]] void write_until_full(const std::string& directory) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=4m") != 0)
        ::_exit(kNoMount);
    const std::string ballast = directory + "/ballast";
    if (!write_file_atomic(ballast, std::string(2 << 20, 'b')))
        ::_exit(kNoMount);
    auto opened = Store::open(directory);
    if (!opened)
        ::_exit(kNoStore);
    Store& store = *opened->store;
    std::vector<std::future<Status>> posted;
    for (int64_t number = 1; number < 20'000 && !store.status().trouble; ++number) {
        auto written = std::make_shared<std::promise<Status>>();
        posted.push_back(written->get_future());
        store.post(numbered_batch(number), Durability::kIntent,
                   [written](Status status) { written->set_value(std::move(status)); });
        if (number % 64 == 0)
            store.flush();
    }
    if (!store.status().trouble)
        ::_exit(kNeverFull);
    if (store.status().trouble->reason != "DiskFull")
        ::_exit(kOtherError);
    std::promise<bool> read;
    store.read_events(0, 10, [&](const Result<std::vector<EventRecord>>& rows) {
        read.set_value(rows && rows->size() == 10);
    });
    if (!read.get_future().get())
        ::_exit(kReadFailed);
    std::filesystem::remove(ballast);
    for (std::future<Status>& one : posted)
        if (!one.get())
            ::_exit(kLost);
    const auto last = static_cast<int64_t>(posted.size());
    opened->store.reset();
    auto again = Store::open(directory);
    ::_exit(again && again->state.last_revision == last && again->state.instances.size() == 1 &&
                    again->state.instances[0].restarts == last
                ? kAllWritten
                : kLost);
}

TEST(StoreCrashTest, AFullDiskMakesBatchesWaitAndWithRoomTheyAreAllWritten) {
    std::string directory = new_directory();
    ASSERT_FALSE(directory.empty());
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0)
        write_until_full(directory);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    std::filesystem::remove_all(directory);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == kNoMount)
        GTEST_SKIP() << "a small file system of its own needs the right to mount";
    EXPECT_EQ(WEXITSTATUS(status), kAllWritten);
}

} // namespace
} // namespace berth
