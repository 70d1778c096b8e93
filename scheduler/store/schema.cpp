// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/schema.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <array>
#include <sys/statvfs.h>

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
    // What is under way is asked for at each start, however much has ended since.
    R"(
CREATE INDEX operations_running ON operations (sequence) WHERE ended_ms = 0;
)",
};

} // namespace

int version() {
    return static_cast<int>(kSteps.size());
}

void configure(SQLite::Database& database) {
    database.setBusyTimeout(kBusyMs);
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

Status check_version(SQLite::Database& database, const std::string& path) {
    int found = database.execAndGet("PRAGMA user_version").getInt();
    if (found <= version())
        return {};
    return fail(ErrorCode::kMismatch,
                fmt::format("{}: the database has schema version {}, this berthd knows up to {}: "
                            "start the newer berthd that wrote it, or give this one another "
                            "spec.stateDir; nothing was changed",
                            path, found, version()),
                "NewerSchema");
}

int migrate(SQLite::Database& database) {
    int found = database.execAndGet("PRAGMA user_version").getInt();
    for (int step = found; step < version(); ++step) {
        SQLite::Transaction transaction(database);
        database.exec(kSteps[static_cast<size_t>(step)]);
        database.exec(fmt::format("PRAGMA user_version = {}", step + 1));
        transaction.commit();
    }
    return found;
}

bool is_corruption(const SQLite::Exception& exception) {
    const int code = exception.getErrorCode() & 0xff;
    return code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
}

bool is_trouble(const SQLite::Exception& exception) {
    switch (exception.getErrorCode() & 0xff) {
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_MISUSE:
    case SQLITE_RANGE:
        return false;
    default:
        return true;
    }
}

bool needs_reopen(const SQLite::Exception& exception) {
    switch (exception.getErrorCode() & 0xff) {
    case SQLITE_FULL:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return false;
    default:
        return true;
    }
}

namespace {

// Some failures of a full disk come as errors of input and output.
bool is_disk_full(const std::string& path) {
    struct statvfs disk{};
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
    return ::statvfs(folder.c_str(), &disk) == 0 && disk.f_bavail == 0;
}

Error disk_full(const std::string& path, const std::string& what, int source) {
    return {ErrorCode::kResourceExhausted,
            fmt::format("{}: the disk is full ({}): free some space there; until then engines run "
                        "on, and nothing new is decided since it could not be written down",
                        path, what),
            "DiskFull", source};
}

} // namespace

Error store_error(const std::string& path, const SQLite::Exception& exception) {
    const int code = exception.getErrorCode() & 0xff;
    const int source = exception.getExtendedErrorCode();
    const std::string what = exception.what();
    switch (code) {
    case SQLITE_FULL:
        return disk_full(path, what, source);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return {ErrorCode::kUnavailable,
                fmt::format("{}: another process holds the database locked ({}): find it with "
                            "`fuser {}` and end it; berthd goes on by itself then",
                            path, what, path),
                "StoreLocked", source};
    case SQLITE_READONLY:
    case SQLITE_PERM:
        return {ErrorCode::kUnavailable,
                fmt::format("{}: cannot be written ({}): mount its file system read-write and give "
                            "file and folder to berthd's user; berthd goes on by itself then",
                            path, what),
                "StoreReadOnly", source};
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return {ErrorCode::kCorrupt,
                fmt::format("{}: not a sound database ({}): it is moved aside and begun anew from "
                            "what is alive",
                            path, what),
                "StoreCorrupt", source};
    case SQLITE_CONSTRAINT:
        return {ErrorCode::kAlreadyExists, fmt::format("{}: {}", path, what), "Constraint", source};
    case SQLITE_CANTOPEN:
        if (is_disk_full(path))
            return disk_full(path, what, source);
        return {ErrorCode::kIo,
                fmt::format("{}: cannot be opened ({}): the folder must be there, and be writable "
                            "for berthd's user",
                            path, what),
                "StoreUnreachable", source};
    default:
        if (is_disk_full(path))
            return disk_full(path, what, source);
        return {ErrorCode::kIo, fmt::format("{}: {}: look at the disk (dmesg)", path, what),
                "StoreFailed", source};
    }
}

} // namespace berth::schema
