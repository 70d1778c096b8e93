// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/store/records.h"
#include "scheduler/store/store.h"

#include <SQLiteCpp/SQLiteCpp.h>

#include <optional>
#include <string>
#include <vector>

// The tables and their rows; private to the store. Exceptions of SQLiteCpp go through: the store
// catches them at its boundary (see store_error).
namespace berth::schema {

// How long a write waits for another process's lock.
constexpr int kBusyMs = 2'000;

// The version that this build writes (PRAGMA user_version).
int version();
// Settings of a connection: WAL, timeouts, a small cache.
void configure(SQLite::Database& database);
// Mismatch when it is newer than this build; reads only.
Status check_version(SQLite::Database& database, const std::string& path);
// Brings an older or empty database up to date, each step in a transaction of its own. Returns the
// version that was found; 0: it was empty.
int migrate(SQLite::Database& database);

void write(SQLite::Database& database, const StoreWrite& row);
void forget_operation(SQLite::Database& database, const std::string& id);
// Revisions up to this one were given before.
void continue_revisions(SQLite::Database& database, int64_t last_revision);

// Drops the oldest history beyond the limits, a bounded number of rows a call; true: call again,
// there is more.
bool trim(SQLite::Database& database, const StoreLimits& limits, int64_t now_ms);
int64_t first_revision(SQLite::Database& database);
StoredState load(SQLite::Database& database, const LoadLimits& limits);
std::vector<EventRecord> read_events(SQLite::Database& database, int64_t since, int64_t limit);
std::optional<OperationRecord> find_operation(SQLite::Database& database,
                                              const std::string& request_id);

// The typed error of a failure in SQLite.
Error store_error(const std::string& path, const SQLite::Exception& exception);
// Whether the failure means that the file is not a sound database.
bool is_corruption(const SQLite::Exception& exception);
// Whether it is the disk's or the file's: the same batch may be written later.
bool is_trouble(const SQLite::Exception& exception);
// Whether the connection must be made anew before the next try.
bool needs_reopen(const SQLite::Exception& exception);

} // namespace berth::schema
