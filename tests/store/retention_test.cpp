// SPDX-License-Identifier: Apache-2.0
// Goal: the database and its log stay within their bounds for as long as a node lives, and what is
// under way is never dropped. Method: the real store; a month of ten decisions a second, each with
// its event and its operation, at a scale that BERTH_STORE_DECISIONS sets (26,000,000 is the whole
// month; it takes about an hour).
//
// Why a small scale tells: after each 512 rows or 4 MiB the store drops, at a time, more rows of
// each kind than came since, once a bound is met. What is on disk is then a high-water mark that
// no longer depends on how many more come; the test drives each bound (age, number, size) past
// itself several times over and looks at the mark after every thousand.
#include "scheduler/store/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>

namespace berth {
namespace {

int64_t wall_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

class RetentionTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = ::testing::TempDir() + "berth-retention-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    void open(StoreLimits limits) {
        limits.queue_batches_max = 10'000;
        auto opened = Store::open(directory_, limits);
        ASSERT_TRUE(opened) << opened.error().message;
        store_ = std::move(opened->store);
    }
    // Ten a second from `first` on: a decision of a few kilobytes with its event, an operation each
    // third.
    void decide(int64_t first, int64_t count, int64_t start_ms, size_t document_bytes) {
        for (int64_t n = first; n < first + count; ++n) {
            const int64_t at = start_ms + n * 100;
            std::vector<StoreWrite> batch = {
                DecisionRecord{
                    fmt::format("d-{}", n), at, "Preempt",
                    std::string(document_bytes / 2 + static_cast<size_t>(n) % document_bytes, 'd')},
                EventRecord{n + 1, at, "Normal", "instance/nightly", "Paused",
                            std::string(80, 'e')}};
            if (n % 3 == 0) {
                OperationRecord operation;
                operation.id = fmt::format("op-{}", n);
                operation.kind = "Preempt";
                operation.state = "Succeeded";
                operation.phases = std::string(120, 'p');
                operation.started_ms = at;
                operation.ended_ms = at + 20;
                batch.emplace_back(std::move(operation));
            }
            store_->post(std::move(batch), Durability::kRecord, {});
            if (n % 1'000 == 999)
                look();
        }
        look();
    }
    void look() {
        store_->flush();
        const StoreStatus status = store_->status();
        bytes_max_ = std::max(bytes_max_, status.bytes);
        wal_bytes_max_ = std::max(wal_bytes_max_, status.wal_bytes);
    }
    int64_t ask(const std::string& sql) {
        SQLite::Database database(directory_ + "/berth.db", SQLite::OPEN_READONLY);
        return database.execAndGet(sql).getInt64();
    }

    std::string directory_;
    std::unique_ptr<Store> store_;
    int64_t bytes_max_ = 0;
    int64_t wal_bytes_max_ = 0;
};

// The defaults at their real sizes with few and large documents; see the top.
TEST_F(RetentionTest, AMonthOfTenDecisionsASecondStaysUnderOneGibibyte) {
    const char* wanted = std::getenv("BERTH_STORE_DECISIONS");
    const bool whole = wanted != nullptr;
    const int64_t count = whole ? std::strtoll(wanted, nullptr, 10) : 24'000;
    StoreLimits limits;
    if (!whole) { // a twentieth of each bound, and more than its fill of decisions
        limits.events_max /= 20;
        limits.operations_max /= 20;
        limits.decisions_max /= 20;
        limits.bytes_max /= 20;
    }
    open(limits);
    decide(0, count, wall_ms() - count * 100, 8'000);
    const int64_t scale = whole ? 1 : 20;
    EXPECT_LT((bytes_max_ + wal_bytes_max_) * scale, int64_t{1} << 30);
    EXPECT_LE(wal_bytes_max_, 2 * limits.wal_bytes_max);
    EXPECT_LE(ask("SELECT count(*) FROM decisions"), limits.decisions_max + 1'000);
    EXPECT_LE(ask("SELECT count(*) FROM events"), limits.events_max + 1'000);
    EXPECT_GT(ask("SELECT count(*) FROM decisions"), limits.newest_min);
    RecordProperty("bytes_max", std::to_string(bytes_max_));
    RecordProperty("wal_bytes_max", std::to_string(wal_bytes_max_));
    fmt::print("{} decisions: at most {} MiB and a log of {} MiB\n", count, bytes_max_ >> 20,
               wal_bytes_max_ >> 20);
}

TEST_F(RetentionTest, LargeDecisionsAreBoundedByTheirBytes) {
    StoreLimits limits;
    limits.bytes_max = 16 << 20;
    limits.newest_min = 10;
    open(limits);
    decide(0, 1'500, wall_ms() - 150'000, 100'000);
    EXPECT_LT(bytes_max_, 2 * limits.bytes_max);
    EXPECT_GT(ask("SELECT count(*) FROM decisions"), 10) << "the newest stay";
    EXPECT_EQ(ask("SELECT max(time_ms) FROM decisions"), ask("SELECT max(time_ms) FROM events"));
}

TEST_F(RetentionTest, WhatIsOldGoesButNeverTheNewestNorWhatIsUnderWay) {
    StoreLimits limits;
    limits.newest_min = 50;
    open(limits);
    OperationRecord running;
    running.id = "op-running";
    running.kind = "Load";
    running.state = "Running";
    running.started_ms = 1;
    store_->post({running}, Durability::kRecord, {});
    const int64_t two_months = int64_t{60} * 24 * 3'600'000;
    decide(0, 3'000, wall_ms() - two_months, 200);
    for (int i = 0; i < 4; ++i) // each looks after what came before it
        decide(3'000 + i * 300, 300, wall_ms() - two_months, 200);
    EXPECT_LE(ask("SELECT count(*) FROM events"), 50 + 1'000);
    EXPECT_GE(ask("SELECT count(*) FROM events"), 50) << "a clock that jumps costs not all";
    EXPECT_EQ(ask("SELECT count(*) FROM operations WHERE id = 'op-running'"), 1);
    EXPECT_GT(ask("SELECT min(revision) FROM events"), 1);
}

TEST_F(RetentionTest, TheFirstRevisionThatIsKeptIsTold) {
    StoreLimits limits;
    limits.events_max = 500;
    open(limits);
    std::atomic<int64_t> first{0};
    store_->watch([&](const StoreReport& report) { first = report.first_revision; });
    decide(0, 4'000, wall_ms(), 200);
    EXPECT_EQ(first, ask("SELECT min(revision) FROM events"));
    EXPECT_GT(first, 2'000);
}

TEST_F(RetentionTest, TheLogIsShortAgainOnceAReaderLetsGo) {
    StoreLimits limits;
    limits.wal_bytes_max = 1 << 20;
    open(limits);
    decide(0, 100, wall_ms(), 200);
    {
        SQLite::Database reader(directory_ + "/berth.db", SQLite::OPEN_READONLY);
        SQLite::Transaction held(reader);
        reader.execAndGet("SELECT count(*) FROM events");
        decide(100, 3'000, wall_ms(), 8'000);
        EXPECT_GT(wal_bytes_max_, 4 * limits.wal_bytes_max) << "the reader holds it";
    }
    decide(3'100, 600, wall_ms(), 8'000);
    EXPECT_LE(store_->status().wal_bytes, 5 << 20);
}

} // namespace
} // namespace berth
