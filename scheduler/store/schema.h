// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/store/records.h"
#include "scheduler/store/store.h"

#include <SQLiteCpp/SQLiteCpp.h>

#include <string>

// The tables and their rows; private to the store. Exceptions of SQLiteCpp go through: the store
// catches them at its boundary (see store_error).
namespace berth::schema {

// The version that this build writes (PRAGMA user_version).
int version();
// Settings of a connection: WAL, timeouts, a small cache.
void configure(SQLite::Database& database);
// Brings an older or empty database up to date, each step in a transaction of its own.
// Mismatch when it is newer than this build.
Status migrate(SQLite::Database& database);

void write(SQLite::Database& database, const StoreWrite& row);
// Drops the oldest rows beyond the limits.
void trim(SQLite::Database& database, const StoreLimits& limits);
StoredState load(SQLite::Database& database, const LoadLimits& limits);
std::vector<EventRecord> read_events(SQLite::Database& database, int64_t since, int64_t limit);

// The typed error of a failure in SQLite.
Error store_error(const std::string& path, const SQLite::Exception& exception);
// Whether the failure means that the file is not a sound database.
bool is_corruption(const SQLite::Exception& exception);

} // namespace berth::schema
