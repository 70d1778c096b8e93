// SPDX-License-Identifier: Apache-2.0
// Goal: a disk that refuses costs no batch: what was posted waits, why is said once, reads go on,
// and all is written once that is possible; what was lost or broken is made anew from the mirror.
// Method: real files; the disk is locked by another connection, filled to a page limit, taken away.
#include "base/unique_fd.h"
#include "scheduler/store/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

InstanceRecord an_instance(const std::string& name) {
    InstanceRecord row;
    row.name = name;
    row.state = "Running";
    row.token_hash = "hash of " + name;
    return row;
}

OperationRecord an_operation(const std::string& id, int64_t ended_ms) {
    OperationRecord row;
    row.id = id;
    row.kind = "Preempt";
    row.state = ended_ms == 0 ? "Running" : "Succeeded";
    row.started_ms = 1;
    row.ended_ms = ended_ms;
    return row;
}

// What the watcher heard; waits until it is as wanted.
class Heard {
  public:
    void watch(Store& store) {
        store.watch([this](StoreReport report) {
            std::lock_guard lock(mutex_);
            last_ = std::move(report);
            incidents_ += last_.incident;
            ++count_;
            changed_.notify_all();
        });
    }
    std::string wait_trouble() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return last_.trouble.has_value(); });
        return last_.trouble->reason;
    }
    void wait_well() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return count_ > 0 && !last_.trouble; });
    }
    Error trouble() {
        std::lock_guard lock(mutex_);
        return last_.trouble.value_or(Error{});
    }
    std::string incidents() {
        std::lock_guard lock(mutex_);
        return incidents_;
    }

  private:
    std::mutex mutex_; // guards all below
    std::condition_variable changed_;
    StoreReport last_;
    std::string incidents_;
    int count_ = 0;
};

std::future<Status> post(Store& store, std::vector<StoreWrite> batch) {
    auto done = std::make_shared<std::promise<Status>>();
    store.post(std::move(batch), Durability::kIntent,
               [done](Status status) { done->set_value(std::move(status)); });
    return done->get_future();
}

std::vector<EventRecord> read_events(Store& store) {
    std::promise<Result<std::vector<EventRecord>>> read;
    store.read_events(0, 100, [&](auto rows) { read.set_value(std::move(rows)); });
    return read.get_future().get().value_or(std::vector<EventRecord>{});
}

class StoreTroubleTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = ::testing::TempDir() + "berth-trouble-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        root_ = pattern;
        std::filesystem::create_directories(mirror());
    }
    void TearDown() override { std::filesystem::remove_all(root_); }
    std::string directory() const { return root_ + "/state"; }
    std::string mirror() const { return root_ + "/run"; }
    std::string path() const { return directory() + "/berth.db"; }
    Result<Store::Opened> open() { return Store::open(directory(), {}, {}, mirror()); }
    std::string root_;
};

TEST_F(StoreTroubleTest, ALockedDatabaseIsSaidAndItsBatchesAreWrittenInOrderOnceItIsFree) {
    auto opened = open();
    ASSERT_TRUE(opened) << opened.error().message;
    Heard heard;
    heard.watch(*opened->store);
    ASSERT_TRUE(post(*opened->store, {EventRecord{1, 1, "Normal", "a", "B", "c"}}).get());
    std::future<Status> first;
    std::future<Status> second;
    {
        SQLite::Database other(path(), SQLite::OPEN_READWRITE, 10'000);
        other.exec("BEGIN IMMEDIATE");
        InstanceRecord old = an_instance("chat");
        old.state = "Preempting";
        first = post(*opened->store, {old});
        second = post(*opened->store, {an_instance("chat")});
        EXPECT_EQ(heard.wait_trouble(), "StoreLocked");
        EXPECT_NE(heard.trouble().message.find("fuser"), std::string::npos);
        EXPECT_EQ(opened->store->status().batches_waiting, 2U);
        EXPECT_EQ(read_events(*opened->store).size(), 1U) << "reads go on";
        other.exec("ROLLBACK");
    }
    EXPECT_TRUE(first.get());
    EXPECT_TRUE(second.get());
    heard.wait_well();
    opened->store.reset();
    auto again = open();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->state.instances, std::vector{an_instance("chat")});
}

TEST_F(StoreTroubleTest, ADatabaseThatIsRemovedUnderBerthdIsMadeAnewFromItsMirror) {
    auto opened = open();
    ASSERT_TRUE(opened);
    Heard heard;
    heard.watch(*opened->store);
    ASSERT_TRUE(post(*opened->store,
                     {an_instance("chat"), an_operation("op-1", 0), an_operation("op-2", 5),
                      PolicyRecord{"1 a", "text"}, EventRecord{7, 1, "Normal", "a", "B", "c"}})
                    .get());
    std::filesystem::remove_all(directory());
    ASSERT_TRUE(post(*opened->store, {an_instance("nightly")}).get());
    EXPECT_NE(heard.incidents().find("was gone"), std::string::npos) << heard.incidents();
    opened->store.reset();
    auto again = open();
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->warning.empty()) << again->warning;
    EXPECT_EQ(again->state.instances, (std::vector{an_instance("chat"), an_instance("nightly")}));
    EXPECT_EQ(again->state.policies, (std::vector{PolicyRecord{"1 a", "text"}}));
    EXPECT_EQ(again->state.operations, std::vector{an_operation("op-1", 0)})
        << "what is under way is no history";
    EXPECT_EQ(again->state.last_revision, 7) << "no revision is given twice";
}

TEST_F(StoreTroubleTest, ADatabaseThatIsGoneAtStartIsMadeAnewFromItsMirror) {
    {
        auto opened = open();
        ASSERT_TRUE(opened);
        ASSERT_TRUE(
            post(*opened->store, {an_instance("chat"), MetaRecord{"cordon/host-0", "x"}}).get());
    }
    std::filesystem::remove_all(directory());
    auto again = open();
    ASSERT_TRUE(again);
    EXPECT_NE(again->warning.find("was gone"), std::string::npos) << again->warning;
    EXPECT_EQ(again->state.instances, std::vector{an_instance("chat")});
    EXPECT_EQ(again->state.meta, (std::vector{MetaRecord{"cordon/host-0", "x"}}));
}

TEST_F(StoreTroubleTest, ADatabaseThatBreaksUnderBerthdIsMovedAsideAndMadeAnewFromItsMirror) {
    auto opened = open();
    ASSERT_TRUE(opened);
    Heard heard;
    heard.watch(*opened->store);
    ASSERT_TRUE(post(*opened->store, {an_instance("chat")}).get());
    {
        SQLite::Database other(path(), SQLite::OPEN_READWRITE, 10'000);
        other.execAndGet("PRAGMA wal_checkpoint(TRUNCATE)");
    }
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << std::string(40'000, 'x');
    // A page that the connection has in its memory may be written over it first.
    ASSERT_TRUE(post(*opened->store, {an_instance("nightly")}).get());
    opened->store.reset();
    auto again = open();
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->state.instances, (std::vector{an_instance("chat"), an_instance("nightly")}));
    EXPECT_NE((heard.incidents() + again->warning).find("corrupt"), std::string::npos);
}

TEST_F(StoreTroubleTest, ACorruptDatabaseAtStartCostsOnlyHistory) {
    {
        auto opened = open();
        ASSERT_TRUE(opened);
        ASSERT_TRUE(post(*opened->store, {an_instance("chat"), an_operation("op-1", 0),
                                          DecisionRecord{"d-1", 1, "Place", "{}"}})
                        .get());
    }
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << std::string(8192, 'x');
    auto again = open();
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_NE(again->warning.find(".corrupt-"), std::string::npos) << again->warning;
    EXPECT_EQ(again->state.instances, std::vector{an_instance("chat")});
    EXPECT_EQ(again->state.operations, std::vector{an_operation("op-1", 0)});
    EXPECT_TRUE(again->state.decisions.empty());
}

TEST_F(StoreTroubleTest, ALockedDatabaseAtStartIsReadAndWaitedFor) {
    {
        auto opened = open();
        ASSERT_TRUE(opened);
        ASSERT_TRUE(post(*opened->store, {an_instance("chat")}).get());
    }
    auto other = std::make_unique<SQLite::Database>(path(), SQLite::OPEN_READWRITE);
    other->exec("PRAGMA locking_mode = EXCLUSIVE");
    other->exec("BEGIN EXCLUSIVE");
    auto again = open();
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_TRUE(again->store->status().trouble);
    EXPECT_EQ(again->store->status().trouble->reason, "StoreLocked");
    EXPECT_EQ(again->state.instances, std::vector{an_instance("chat")}) << "from the mirror";
    Heard heard;
    heard.watch(*again->store);
    std::future<Status> waiting = post(*again->store, {an_instance("nightly")});
    other.reset();
    EXPECT_TRUE(waiting.get());
    heard.wait_well();
}

TEST_F(StoreTroubleTest, ANewerDatabaseIsLeftAsItIsToTheLastByteWithBothVersionsNamed) {
    {
        auto opened = open();
        ASSERT_TRUE(opened);
        ASSERT_TRUE(post(*opened->store, {an_instance("chat")}).get());
    }
    auto content = [](const std::string& file) { return read_file(file).value_or("absent"); };
    // Its log still holds the last words: they must not be moved either.
    SQLite::Database newer(path(), SQLite::OPEN_READWRITE);
    newer.exec("PRAGMA user_version = 999");
    const std::string before = content(path());
    const std::string log = content(path() + "-wal");
    auto opened = open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::kMismatch);
    EXPECT_NE(opened.error().message.find("version 999"), std::string::npos);
    EXPECT_NE(opened.error().message.find("up to 3"), std::string::npos) << opened.error().message;
    EXPECT_EQ(content(path()), before);
    EXPECT_EQ(content(path() + "-wal"), log);
}

TEST_F(StoreTroubleTest, WhatWaitsWhenTheProcessEndsIsToldWhy) {
    auto opened = open();
    ASSERT_TRUE(opened);
    SQLite::Database other(path(), SQLite::OPEN_READWRITE, 10'000);
    other.exec("BEGIN IMMEDIATE");
    std::future<Status> waiting = post(*opened->store, {an_instance("chat")});
    opened->store.reset();
    Status told = waiting.get();
    ASSERT_FALSE(told);
    EXPECT_EQ(told.error().reason, "StoreLocked");
}

} // namespace
} // namespace berth
