// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/schema.h"

#include <type_traits>

namespace berth::schema {

namespace {

// Binds one value after the other, so that the order of the columns is the order of the text.
class Binder {
  public:
    Binder(SQLite::Database& database, const char* sql) : statement_(database, sql) {}
    Binder& text(const std::string& value) {
        statement_.bind(++index_, value);
        return *this;
    }
    Binder& text_or_null(const std::string& value) {
        if (value.empty())
            statement_.bind(++index_);
        else
            statement_.bind(++index_, value);
        return *this;
    }
    Binder& integer(int64_t value) {
        statement_.bind(++index_, value);
        return *this;
    }
    void run() { statement_.exec(); }

  private:
    SQLite::Statement statement_;
    int index_ = 0;
};

void put(SQLite::Database& database, const InstanceRecord& row) {
    Binder(database, "INSERT OR REPLACE INTO instances (name, spec, state, desired, device, pid, "
                     "start_ticks, token_hash, grant_bytes, weight_set, restarts, reason, message, "
                     "endpoint, phases, extra) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")
        .text(row.name)
        .text(row.spec)
        .text(row.state)
        .text(row.desired)
        .text(row.device)
        .integer(row.pid)
        .integer(row.start_ticks)
        .text(row.token_hash)
        .integer(row.grant_bytes)
        .text(row.weight_set)
        .integer(row.restarts)
        .text(row.reason)
        .text(row.message)
        .text(row.endpoint)
        .text(row.phases)
        .text(row.extra)
        .run();
}

// An operation keeps its place in the sequence when it is written again. Where an older one has its
// request id, the newest has it from then on: what is past is no reason to refuse a batch, which
// has what is, too.
void put(SQLite::Database& database, const OperationRecord& row) {
    if (!row.request_id.empty())
        Binder(database, "UPDATE operations SET request_id = NULL WHERE request_id = ? AND id != ?")
            .text(row.request_id)
            .text(row.id)
            .run();
    Binder(database,
           "INSERT INTO operations (id, request_id, kind, instance, mode, state, phases, "
           "bytes_freed, error, started_ms, ended_ms, extra) VALUES (?,?,?,?,?,?,?,?,?,?,?,?) "
           "ON CONFLICT (id) DO UPDATE SET state = excluded.state, mode = excluded.mode, "
           "phases = excluded.phases, bytes_freed = excluded.bytes_freed, error = excluded.error, "
           "ended_ms = excluded.ended_ms, extra = excluded.extra")
        .text(row.id)
        .text_or_null(row.request_id)
        .text(row.kind)
        .text(row.instance)
        .text(row.mode)
        .text(row.state)
        .text(row.phases)
        .integer(row.bytes_freed)
        .text(row.error)
        .integer(row.started_ms)
        .integer(row.ended_ms)
        .text(row.extra)
        .run();
}

void put(SQLite::Database& database, const DecisionRecord& row) {
    Binder(database, "INSERT INTO decisions (id, time_ms, kind, document) VALUES (?,?,?,?) "
                     "ON CONFLICT (id) DO UPDATE SET document = excluded.document")
        .text(row.id)
        .integer(row.time_ms)
        .text(row.kind)
        .text(row.document)
        .run();
}

void put(SQLite::Database& database, const EventRecord& row) {
    Binder(database, "INSERT INTO events (revision, time_ms, kind, object, reason, message) "
                     "VALUES (?,?,?,?,?,?) ON CONFLICT (revision) DO UPDATE SET "
                     "time_ms = excluded.time_ms, kind = excluded.kind, object = excluded.object, "
                     "reason = excluded.reason, message = excluded.message")
        .integer(row.revision)
        .integer(row.time_ms)
        .text(row.kind)
        .text(row.object)
        .text(row.reason)
        .text(row.message)
        .run();
}

void put(SQLite::Database& database, const PlacementRecord& row) {
    Binder(database, "INSERT OR REPLACE INTO placements (weight_set, device, model, path, "
                     "fingerprint, bytes, extra) VALUES (?,?,?,?,?,?,?)")
        .text(row.weight_set)
        .text(row.device)
        .text(row.model)
        .text(row.path)
        .text(row.fingerprint)
        .integer(row.bytes)
        .text(row.extra)
        .run();
}

void put(SQLite::Database& database, const PolicyRecord& row) {
    Binder(database, "INSERT OR REPLACE INTO policies (source, text) VALUES (?,?)")
        .text(row.source)
        .text(row.text)
        .run();
}

void put(SQLite::Database& database, const MetaRecord& row) {
    Binder(database, "INSERT OR REPLACE INTO meta (key, value) VALUES (?,?)")
        .text(row.key)
        .text(row.value)
        .run();
}

void put(SQLite::Database& database, const ForgetInstance& row) {
    Binder(database, "DELETE FROM instances WHERE name = ?").text(row.name).run();
}

void put(SQLite::Database& database, const ForgetPlacement& row) {
    Binder(database, "DELETE FROM placements WHERE weight_set = ? AND device = ?")
        .text(row.weight_set)
        .text(row.device)
        .run();
}

void put(SQLite::Database& database, const ForgetPolicy& row) {
    Binder(database, "DELETE FROM policies WHERE source = ?").text(row.source).run();
}

// Reads one column after the other.
class Columns {
  public:
    explicit Columns(SQLite::Statement& statement) : statement_(statement) {}
    std::string text() { return statement_.getColumn(index_++).getString(); }
    int64_t integer() { return statement_.getColumn(index_++).getInt64(); }

  private:
    SQLite::Statement& statement_;
    int index_ = 0;
};

// Braced initialisers read the columns from left to right.
template <typename Row, typename Read>
std::vector<Row> read_all(SQLite::Database& database, const char* sql, Read read,
                          int64_t limit = -1) {
    SQLite::Statement statement(database, sql);
    if (limit >= 0)
        statement.bind(1, limit);
    std::vector<Row> rows;
    while (statement.executeStep()) {
        Columns columns(statement);
        rows.push_back(read(columns));
    }
    return rows;
}

EventRecord read_event(Columns& at) {
    return EventRecord{at.integer(), at.integer(), at.text(), at.text(), at.text(), at.text()};
}

InstanceRecord read_instance(Columns& at) {
    return InstanceRecord{at.text(),    at.text(),    at.text(),    at.text(),
                          at.text(),    at.integer(), at.integer(), at.text(),
                          at.integer(), at.text(),    at.integer(), at.text(),
                          at.text(),    at.text(),    at.text(),    at.text()};
}

OperationRecord read_operation(Columns& at) {
    return OperationRecord{at.text(), at.text(),    at.text(),    at.text(),
                           at.text(), at.text(),    at.text(),    at.integer(),
                           at.text(), at.integer(), at.integer(), at.text()};
}

} // namespace

void write(SQLite::Database& database, const StoreWrite& row) {
    std::visit([&](const auto& one) { put(database, one); }, row);
}

void forget_operation(SQLite::Database& database, const std::string& id) {
    Binder(database, "DELETE FROM operations WHERE id = ?").text(id).run();
}

// The sequence's own table may be written.
void continue_revisions(SQLite::Database& database, int64_t last_revision) {
    const int64_t known =
        database
            .execAndGet("SELECT ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")
            .getInt64();
    if (known >= last_revision)
        return;
    Binder(database, "DELETE FROM sqlite_sequence WHERE name = ?").text("events").run();
    Binder(database, "INSERT INTO sqlite_sequence (name, seq) VALUES (?,?)")
        .text("events")
        .integer(last_revision)
        .run();
}

std::optional<OperationRecord> find_operation(SQLite::Database& database,
                                              const std::string& request_id) {
    SQLite::Statement statement(database,
                                "SELECT id, ifnull(request_id, ''), kind, instance, mode, state, "
                                "phases, bytes_freed, error, started_ms, ended_ms, extra "
                                "FROM operations WHERE request_id = ?");
    statement.bind(1, request_id);
    if (!statement.executeStep())
        return std::nullopt;
    Columns columns(statement);
    return read_operation(columns);
}

StoredState load(SQLite::Database& database, const LoadLimits& limits) {
    StoredState state;
    state.instances = read_all<InstanceRecord>(
        database,
        "SELECT name, spec, state, desired, device, pid, start_ticks, token_hash, grant_bytes, "
        "weight_set, restarts, reason, message, endpoint, phases, extra FROM instances",
        read_instance);
    state.operations = read_all<OperationRecord>(
        database,
        "SELECT id, ifnull(request_id, ''), kind, instance, mode, state, phases, bytes_freed, "
        "error, started_ms, ended_ms, extra FROM operations WHERE sequence IN "
        "(SELECT sequence FROM operations WHERE ended_ms = 0 UNION "
        "SELECT sequence FROM (SELECT sequence FROM operations ORDER BY sequence DESC LIMIT ?)) "
        "ORDER BY sequence",
        read_operation, limits.operations);
    state.decisions = read_all<DecisionRecord>(
        database,
        "SELECT id, time_ms, kind, document FROM "
        "(SELECT * FROM decisions ORDER BY sequence DESC LIMIT ?) ORDER BY sequence",
        [](Columns& at) { return DecisionRecord{at.text(), at.integer(), at.text(), at.text()}; },
        limits.decisions);
    state.events = read_all<EventRecord>(
        database,
        "SELECT revision, time_ms, kind, object, reason, message FROM "
        "(SELECT * FROM events ORDER BY revision DESC LIMIT ?) ORDER BY revision",
        read_event, limits.events);
    state.placements = read_all<PlacementRecord>(
        database,
        "SELECT weight_set, device, model, path, fingerprint, bytes, extra FROM placements",
        [](Columns& at) {
            return PlacementRecord{at.text(), at.text(),    at.text(), at.text(),
                                   at.text(), at.integer(), at.text()};
        });
    state.policies =
        read_all<PolicyRecord>(database, "SELECT source, text FROM policies ORDER BY source",
                               [](Columns& at) { return PolicyRecord{at.text(), at.text()}; });
    state.meta = read_all<MetaRecord>(database, "SELECT key, value FROM meta",
                                      [](Columns& at) { return MetaRecord{at.text(), at.text()}; });
    state.first_revision = first_revision(database);
    // AUTOINCREMENT remembers the highest revision ever given, also when its row is gone.
    state.last_revision =
        database
            .execAndGet("SELECT ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")
            .getInt64();
    return state;
}

std::vector<EventRecord> read_events(SQLite::Database& database, int64_t since, int64_t limit) {
    SQLite::Statement statement(database,
                                "SELECT revision, time_ms, kind, object, reason, message "
                                "FROM events WHERE revision > ? ORDER BY revision LIMIT ?");
    statement.bind(1, since);
    statement.bind(2, limit);
    std::vector<EventRecord> rows;
    while (statement.executeStep()) {
        Columns columns(statement);
        rows.push_back(read_event(columns));
    }
    return rows;
}

} // namespace berth::schema
