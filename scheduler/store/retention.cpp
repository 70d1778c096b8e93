// SPDX-License-Identifier: Apache-2.0
// What history is dropped, and when: beyond a number of rows, beyond an age, and while the database
// holds more than it may. A call drops a bounded number of rows, so that no write waits long for
// it; more is dropped than is written between two calls.
#include "scheduler/store/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace berth::schema {

namespace {

constexpr int64_t kRowsAtOnce = 4'096; // of one kind, a call
constexpr int64_t kSizeShare = 16;     // of a kind's rows that go at once when there is no room

struct Kind {
    const char* table;
    const char* key;  // grows with each row
    const char* time; // wall clock
    const char* condition;
    int64_t keep = 0;
};

// The oldest `rows` of it, if they also meet the condition.
int drop_oldest(SQLite::Database& database, const Kind& kind, int64_t rows,
                const std::string& condition) {
    return database.exec(
        fmt::format("DELETE FROM {0} WHERE {1} < (SELECT {1} FROM {0} WHERE true{3} ORDER BY {1} "
                    "LIMIT 1) + {2}{3}{4}",
                    kind.table, kind.key, rows, kind.condition, condition));
}

int64_t used_bytes(SQLite::Database& database) {
    const int64_t pages = database.execAndGet("PRAGMA page_count").getInt64() -
                          database.execAndGet("PRAGMA freelist_count").getInt64();
    return pages * database.execAndGet("PRAGMA page_size").getInt64();
}

} // namespace

bool trim(SQLite::Database& database, const StoreLimits& limits, int64_t now_ms) {
    const std::array kinds = {
        Kind{"events", "revision", "time_ms", "", limits.events_max},
        Kind{"operations", "sequence", "ended_ms", " AND ended_ms != 0", limits.operations_max},
        Kind{"decisions", "sequence", "time_ms", "", limits.decisions_max},
    };
    const bool too_big = used_bytes(database) > limits.bytes_max;
    bool more = false;
    SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
    for (const Kind& kind : kinds) {
        const auto newest_but = [&](int64_t rows) {
            return fmt::format(" AND {1} <= (SELECT max({1}) FROM {0}) - {2}", kind.table, kind.key,
                               rows);
        };
        int dropped = drop_oldest(database, kind, kRowsAtOnce, newest_but(kind.keep));
        dropped += drop_oldest(
            database, kind, kRowsAtOnce,
            newest_but(limits.newest_min) +
                fmt::format(" AND {} < {}", kind.time, now_ms - limits.age_max.count()));
        more = more || dropped >= kRowsAtOnce;
        if (!too_big)
            continue;
        const int64_t span =
            database
                .execAndGet(fmt::format("SELECT ifnull(max({1}) - min({1}) + 1, 0) FROM {0}",
                                        kind.table, kind.key))
                .getInt64();
        const int64_t share = std::min(kRowsAtOnce, span / kSizeShare + 1);
        more = drop_oldest(database, kind, share, newest_but(1)) > 0 || more;
    }
    transaction.commit();
    return more;
}

int64_t first_revision(SQLite::Database& database) {
    return database.execAndGet("SELECT ifnull(min(revision), 0) FROM events").getInt64();
}

} // namespace berth::schema
