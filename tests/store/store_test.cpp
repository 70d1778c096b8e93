// SPDX-License-Identifier: Apache-2.0
// Goal: what was acknowledged is there after any death, a batch is whole or absent, and a database
// that cannot be used is a typed error or is moved aside. Method: real files in a folder of the
// test's own; the crash test forks a writer and kills it.
#include "scheduler/store/store.h"

#include "base/unique_fd.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <unistd.h>

namespace berth {
namespace {

class StoreTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = ::testing::TempDir() + "berth-store-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }
    std::string path() const { return directory_ + "/berth.db"; }
    static Status write(Store& store, std::vector<StoreWrite> batch,
                        Durability durability = Durability::kIntent) {
        std::promise<Status> done;
        store.post(std::move(batch), durability,
                   [&done](Status status) { done.set_value(std::move(status)); });
        return done.get_future().get();
    }
    // The id of the operation that it leads to; "": none.
    static std::string found(Store& store, const std::string& request_id) {
        std::promise<Result<std::optional<OperationRecord>>> done;
        store.find_operation(request_id, [&done](Result<std::optional<OperationRecord>> record) {
            done.set_value(std::move(record));
        });
        const auto record = done.get_future().get();
        EXPECT_TRUE(record);
        return record && *record ? (*record)->id : "";
    }
    std::string directory_;
};

InstanceRecord an_instance(const std::string& name) {
    InstanceRecord row;
    row.name = name;
    row.spec = R"({"model":"m"})";
    row.state = "Running";
    row.desired = "Running";
    row.device = "host-0";
    row.pid = 4711;
    row.start_ticks = 123456789012345;
    row.token_hash = "abc";
    row.grant_bytes = int64_t{40} << 30;
    row.weight_set = "0011223344556677";
    row.restarts = 3;
    row.reason = "Started";
    row.message = "it's \"up\"";
    row.endpoint = "http://127.0.0.1:8000";
    row.phases = R"({"attach":1.5})";
    row.extra = "{}";
    return row;
}

OperationRecord an_operation(const std::string& id, const std::string& request_id = {}) {
    OperationRecord row;
    row.id = id;
    row.request_id = request_id;
    row.kind = "Preempt";
    row.instance = "nightly";
    row.mode = "Evict";
    row.state = "Running";
    row.phases = "[]";
    row.started_ms = 1700000000000;
    return row;
}

EventRecord an_event(int64_t revision) {
    return EventRecord{revision, 1700000000000 + revision, "Instance", "chat", "Started", "up"};
}

TEST_F(StoreTest, EveryRowIsReadBackAsItWasWritten) {
    InstanceRecord instance = an_instance("chat");
    OperationRecord operation = an_operation("op-1", "req-1");
    operation.error = R"({"code":"Internal"})";
    operation.ended_ms = 5;
    operation.bytes_freed = 77;
    DecisionRecord decision{"d-1", 9, "Preempt", R"({"winner":"nightly"})"};
    PlacementRecord placement{"0011223344556677", "host-0", "m", "/models/m", "ff", 42, "{}"};
    PolicyRecord policy{"api", "apiVersion: berth/v1\n"};
    MetaRecord meta{"node", "gpu-17"};
    {
        auto opened = Store::open(directory_);
        ASSERT_TRUE(opened) << opened.error().message;
        EXPECT_TRUE(opened->state.instances.empty());
        ASSERT_TRUE(write(*opened->store,
                          {instance, operation, decision, an_event(1), placement, policy, meta}));
    }
    auto again = Store::open(directory_);
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->warning.empty());
    EXPECT_EQ(again->state.instances, std::vector{instance});
    EXPECT_EQ(again->state.operations, std::vector{operation});
    EXPECT_EQ(again->state.decisions, std::vector{decision});
    EXPECT_EQ(again->state.events, std::vector{an_event(1)});
    EXPECT_EQ(again->state.placements, std::vector{placement});
    EXPECT_EQ(again->state.policies, std::vector{policy});
    EXPECT_EQ(again->state.meta, std::vector{meta});
    EXPECT_EQ(again->state.last_revision, 1);
}

TEST_F(StoreTest, ARowWrittenAgainReplacesTheOldOneAndForgettingRemovesIt) {
    auto opened = Store::open(directory_);
    ASSERT_TRUE(opened);
    InstanceRecord chat = an_instance("chat");
    OperationRecord first = an_operation("op-1");
    ASSERT_TRUE(write(*opened->store, {chat, an_instance("nightly"), first, an_operation("op-2")}));
    chat.state = "Paused";
    first.state = "Succeeded";
    ASSERT_TRUE(write(*opened->store, {chat, ForgetInstance{"nightly"}, first}));
    opened->store.reset();
    auto again = Store::open(directory_);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->state.instances, std::vector{chat});
    ASSERT_EQ(again->state.operations.size(), 2U);
    EXPECT_EQ(again->state.operations[0], first) << "an operation keeps its place";
}

TEST_F(StoreTest, ABatchWithOneBadRowLeavesNothingOfItself) {
    auto opened = Store::open(directory_);
    ASSERT_TRUE(opened);
    ASSERT_TRUE(write(*opened->store, {an_operation("op-1")}));
    SQLite::Database(path(), SQLite::OPEN_READWRITE, 10'000) // beside the store's own
        .exec("CREATE TRIGGER bad BEFORE INSERT ON operations WHEN NEW.id = 'op-2' "
              "BEGIN SELECT RAISE(ABORT, 'no such row'); END");
    Status refused = write(*opened->store, {an_instance("chat"), an_operation("op-2")});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kAlreadyExists);
    opened->store.reset();
    auto again = Store::open(directory_);
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->state.instances.empty());
    EXPECT_EQ(again->state.operations.size(), 1U);
}

// What is past never keeps what is from being written down.
TEST_F(StoreTest, ARequestIdThatIsUsedAgainIsTheNewestOperations) {
    auto opened = Store::open(directory_);
    ASSERT_TRUE(opened);
    Store& store = *opened->store;
    ASSERT_TRUE(write(store, {an_operation("op-1", "req-1"), an_event(1)}));
    EXPECT_EQ(found(store, "req-1"), "op-1");
    EXPECT_EQ(found(store, "req-2"), "");
    ASSERT_TRUE(write(store, {an_instance("chat"), an_operation("op-2", "req-1"), an_event(1)}));
    EXPECT_EQ(found(store, "req-1"), "op-2");
    // The older one is written again, as it ends.
    OperationRecord older = an_operation("op-1", "req-1");
    older.ended_ms = 7;
    ASSERT_TRUE(write(store, {an_instance("nightly"), older}));
    opened->store.reset();
    auto again = Store::open(directory_);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->state.instances.size(), 2U);
    ASSERT_EQ(again->state.operations.size(), 2U);
    EXPECT_EQ(again->state.operations[0].ended_ms, 7);
}

TEST_F(StoreTest, EventsAreBoundedAndRevisionsNeverComeBack) {
    StoreLimits limits;
    limits.events_max = 100;
    auto opened = Store::open(directory_, limits);
    ASSERT_TRUE(opened);
    for (int64_t revision = 1; revision <= 2000; ++revision)
        opened->store->post({an_event(revision)}, Durability::kRecord, {});
    opened->store->flush();
    std::promise<std::vector<EventRecord>> read;
    opened->store->read_events(1990, 5, [&](Result<std::vector<EventRecord>> rows) {
        read.set_value(rows ? *rows : std::vector<EventRecord>{});
    });
    std::vector<EventRecord> rows = read.get_future().get();
    ASSERT_EQ(rows.size(), 5U);
    EXPECT_EQ(rows.front(), an_event(1991));
    opened->store.reset();
    auto again = Store::open(directory_, limits);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->state.last_revision, 2000);
    EXPECT_GT(again->state.first_revision, 1);
    EXPECT_LE(again->state.last_revision - again->state.first_revision, 100 + 512);
}

TEST_F(StoreTest, ADatabaseOfTheFirstVersionIsMigratedWithItsRows) {
    std::filesystem::create_directories(directory_);
    {
        SQLite::Database old(path(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
        old.exec(
            "CREATE TABLE instances (name TEXT PRIMARY KEY, spec TEXT NOT NULL, state TEXT NOT "
            "NULL, desired TEXT NOT NULL, device TEXT NOT NULL, pid INTEGER NOT NULL, "
            "start_ticks INTEGER NOT NULL, token_hash TEXT NOT NULL, grant_bytes INTEGER NOT "
            "NULL, weight_set TEXT NOT NULL, restarts INTEGER NOT NULL, reason TEXT NOT NULL, "
            "message TEXT NOT NULL, endpoint TEXT NOT NULL, phases TEXT NOT NULL) STRICT, "
            "WITHOUT ROWID;"
            "CREATE TABLE operations (sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT "
            "NULL UNIQUE, request_id TEXT UNIQUE, kind TEXT NOT NULL, instance TEXT NOT NULL, "
            "mode TEXT NOT NULL, state TEXT NOT NULL, phases TEXT NOT NULL, bytes_freed INTEGER "
            "NOT NULL, error TEXT NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER NOT "
            "NULL) STRICT;"
            "CREATE TABLE decisions (sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT "
            "NULL UNIQUE, time_ms INTEGER NOT NULL, kind TEXT NOT NULL, document TEXT NOT NULL) "
            "STRICT;"
            "CREATE TABLE events (revision INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER "
            "NOT NULL, kind TEXT NOT NULL, object TEXT NOT NULL, reason TEXT NOT NULL, message "
            "TEXT NOT NULL) STRICT;"
            "CREATE TABLE placements (weight_set TEXT NOT NULL, device TEXT NOT NULL, model "
            "TEXT NOT NULL, path TEXT NOT NULL, fingerprint TEXT NOT NULL, bytes INTEGER NOT "
            "NULL, PRIMARY KEY (weight_set, device)) STRICT, WITHOUT ROWID;"
            "CREATE TABLE policies (source TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT, "
            "WITHOUT ROWID;"
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT "
            "ROWID;"
            "INSERT INTO instances VALUES ('chat','{}','Running','Running','host-0',1,2,'h',3,"
            "'w',0,'','','','{}');"
            "PRAGMA user_version = 1;");
    }
    auto opened = Store::open(directory_);
    ASSERT_TRUE(opened) << opened.error().message;
    ASSERT_EQ(opened->state.instances.size(), 1U);
    EXPECT_EQ(opened->state.instances[0].name, "chat");
    EXPECT_EQ(opened->state.instances[0].grant_bytes, 3);
    EXPECT_TRUE(write(*opened->store, {an_instance("chat")}));
}

TEST_F(StoreTest, ACorruptDatabaseIsMovedAsideAndANewOneBegun) {
    {
        auto opened = Store::open(directory_);
        ASSERT_TRUE(opened);
        ASSERT_TRUE(write(*opened->store, {an_instance("chat")}));
    }
    std::string garbage(8192, 'x');
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << garbage;
    auto opened = Store::open(directory_);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_NE(opened->warning.find("corrupt"), std::string::npos);
    EXPECT_TRUE(opened->state.instances.empty());
    EXPECT_TRUE(write(*opened->store, {an_instance("chat")}));
    int aside = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
        aside += entry.path().filename().string().starts_with("berth.db.corrupt-") ? 1 : 0;
    EXPECT_EQ(aside, 1) << "the broken file is kept for whoever wants to look";
}

TEST_F(StoreTest, ADatabaseThatLostItsEndIsMovedAside) {
    {
        auto opened = Store::open(directory_);
        ASSERT_TRUE(opened);
        for (int i = 0; i < 200; ++i)
            opened->store->post({an_instance(fmt::format("i-{}", i))}, Durability::kRecord, {});
    }
    auto size = std::filesystem::file_size(path());
    ASSERT_GT(size, 16384U);
    // Zero the pages after the first: the header is sound, the tables are not.
    {
        std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(4096);
        file << std::string(size - 4096, '\0');
    }
    auto opened = Store::open(directory_);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_FALSE(opened->warning.empty());
}

} // namespace
} // namespace berth
