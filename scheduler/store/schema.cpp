// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/schema.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <array>

namespace berth::schema {

namespace {

// Each step takes the database from its index to the next version. Steps are never edited once
// released: a change is a new step.
constexpr std::array kSteps = {
    R"(
CREATE TABLE instances (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL, state TEXT NOT NULL, desired TEXT NOT NULL,
    device TEXT NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL,
    token_hash TEXT NOT NULL, grant_bytes INTEGER NOT NULL, weight_set TEXT NOT NULL,
    restarts INTEGER NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    endpoint TEXT NOT NULL, phases TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE operations (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, request_id TEXT UNIQUE,
    kind TEXT NOT NULL, instance TEXT NOT NULL, mode TEXT NOT NULL, state TEXT NOT NULL,
    phases TEXT NOT NULL, bytes_freed INTEGER NOT NULL, error TEXT NOT NULL,
    started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE decisions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, time_ms INTEGER NOT NULL,
    kind TEXT NOT NULL, document TEXT NOT NULL
) STRICT;
CREATE TABLE events (
    revision INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL, kind TEXT NOT NULL,
    object TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL
) STRICT;
CREATE TABLE placements (
    weight_set TEXT NOT NULL, device TEXT NOT NULL, model TEXT NOT NULL, path TEXT NOT NULL,
    fingerprint TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (weight_set, device)
) STRICT, WITHOUT ROWID;
CREATE TABLE policies (source TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
)",
    // Room for fields that nothing searches by, so that adding one needs no step.
    R"(
ALTER TABLE instances ADD COLUMN extra TEXT NOT NULL DEFAULT '';
ALTER TABLE operations ADD COLUMN extra TEXT NOT NULL DEFAULT '';
ALTER TABLE placements ADD COLUMN extra TEXT NOT NULL DEFAULT '';
)",
};

} // namespace

int version() {
    return static_cast<int>(kSteps.size());
}

void configure(SQLite::Database& database) {
    database.setBusyTimeout(2000);
    // A query of one row tells whether the file is a database at all.
    database.execAndGet("PRAGMA schema_version");
    std::string mode = database.execAndGet("PRAGMA journal_mode = WAL").getString();
    if (mode != "wal")
        throw SQLite::Exception("the file system does not allow write-ahead logging",
                                SQLITE_CANTOPEN);
    database.exec("PRAGMA synchronous = FULL");
    database.exec("PRAGMA foreign_keys = ON");
    // berthd's memory is bounded: half a MiB of pages is plenty for these tables.
    database.exec("PRAGMA cache_size = -512");
    database.exec("PRAGMA journal_size_limit = 4194304");
}

Status migrate(SQLite::Database& database) {
    int found = database.execAndGet("PRAGMA user_version").getInt();
    if (found > version())
        return fail(ErrorCode::kMismatch,
                    fmt::format("the database has schema version {}, this berthd knows up to {}: "
                                "start the newer berthd that wrote it, or move the file away",
                                found, version()),
                    "NewerSchema");
    for (int step = found; step < version(); ++step) {
        SQLite::Transaction transaction(database);
        database.exec(kSteps[static_cast<size_t>(step)]);
        database.exec(fmt::format("PRAGMA user_version = {}", step + 1));
        transaction.commit();
    }
    return {};
}

void trim(SQLite::Database& database, const StoreLimits& limits) {
    auto drop = [&](const char* table, const char* key, int64_t keep) {
        database.exec(fmt::format("DELETE FROM {0} WHERE {1} <= (SELECT max({1}) FROM {0}) - {2}",
                                  table, key, keep));
    };
    drop("events", "revision", limits.events_max);
    drop("operations", "sequence", limits.operations_max);
    drop("decisions", "sequence", limits.decisions_max);
}

bool is_corruption(const SQLite::Exception& exception) {
    return exception.getErrorCode() == SQLITE_CORRUPT || exception.getErrorCode() == SQLITE_NOTADB;
}

Error store_error(const std::string& path, const SQLite::Exception& exception) {
    int code = exception.getErrorCode() & 0xff;
    std::string what = exception.what();
    switch (code) {
    case SQLITE_FULL:
        return {ErrorCode::kResourceExhausted,
                fmt::format("{}: the disk is full ({}): free some space; nothing is decided until "
                            "it can be written down",
                            path, what),
                "DiskFull", exception.getExtendedErrorCode()};
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return {ErrorCode::kUnavailable,
                fmt::format("{}: another process holds the database locked ({})", path, what),
                "StoreLocked", exception.getExtendedErrorCode()};
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return {ErrorCode::kCorrupt,
                fmt::format("{}: not a sound database ({}): a restart of berthd moves it aside and "
                            "begins a new one from what is alive",
                            path, what),
                "StoreCorrupt", exception.getExtendedErrorCode()};
    case SQLITE_CONSTRAINT:
        return {ErrorCode::kAlreadyExists, fmt::format("{}: {}", path, what), "Constraint",
                exception.getExtendedErrorCode()};
    default:
        return {ErrorCode::kIo, fmt::format("{}: {}", path, what), "StoreFailed",
                exception.getExtendedErrorCode()};
    }
}

} // namespace berth::schema
