// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/database_file.h"

#include "base/unique_fd.h"
#include "scheduler/store/schema.h"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <unistd.h>

namespace berth {

namespace {

bool exists(const std::string& path) {
    return !path.empty() && ::access(path.c_str(), F_OK) == 0;
}

// Renames the database and what SQLite keeps beside it. Nothing is deleted: an operator may want
// to look.
Result<std::string> move_aside(const std::string& path) {
    std::string stem = fmt::format("{}.corrupt-{}", path, std::time(nullptr));
    std::string target = stem;
    for (int n = 2; exists(target); ++n)
        target = fmt::format("{}-{}", stem, n);
    if (std::rename(path.c_str(), target.c_str()) != 0)
        return fail_errno(fmt::format("moving the broken database {} aside", path));
    for (const char* suffix : {"-wal", "-shm"})
        std::rename((path + suffix).c_str(), (target + suffix).c_str());
    return target;
}

// A connection that cannot write finds out which version lies there: of a newer one not even the
// log may be moved into the file, as the last connection to close would do.
Status refuse_newer(const std::string& path) {
    try {
        SQLite::Database look(path, SQLite::OPEN_READONLY, schema::kBusyMs);
        return schema::check_version(look, path);
    } catch (const SQLite::Exception&) {
        return {}; // what is wrong is told when it is opened for good
    }
}

// Everything in `state` that is no history.
std::vector<StoreWrite> rows_of(const StoredState& state) {
    std::vector<StoreWrite> rows;
    rows.insert(rows.end(), state.instances.begin(), state.instances.end());
    rows.insert(rows.end(), state.placements.begin(), state.placements.end());
    rows.insert(rows.end(), state.policies.begin(), state.policies.end());
    rows.insert(rows.end(), state.meta.begin(), state.meta.end());
    for (const OperationRecord& operation : state.operations)
        if (operation.ended_ms == 0)
            rows.emplace_back(operation);
    return rows;
}

Result<StoredState> read_mirror(const std::string& path) {
    try {
        SQLite::Database mirror(path, SQLite::OPEN_READWRITE, schema::kBusyMs);
        BERTH_TRY(schema::check_version(mirror, path));
        return schema::load(mirror, LoadLimits{});
    } catch (const SQLite::Exception& exception) {
        return fail(schema::store_error(path, exception));
    }
}

// Returns what was done, in words; nothing when there was nothing to restore from.
std::string restore(SQLite::Database& database, const std::string& mirror_path) {
    if (!exists(mirror_path))
        return {};
    auto mirrored = read_mirror(mirror_path);
    if (!mirrored)
        return fmt::format("its mirror could not be used either ({})", mirrored.error().message);
    std::vector<StoreWrite> rows = rows_of(*mirrored);
    SQLite::Transaction transaction(database);
    for (const StoreWrite& row : rows)
        schema::write(database, row);
    schema::continue_revisions(database, mirrored->last_revision);
    transaction.commit();
    return fmt::format("{} instances, {} placements, {} applied policies and the operations under "
                       "way are restored from {}",
                       mirrored->instances.size(), mirrored->placements.size(),
                       mirrored->policies.size(), mirror_path);
}

Status remember_place(DatabaseFile& file, const std::string& path) {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0)
        return fail_errno(path);
    file.device = status.st_dev;
    file.inode = status.st_ino;
    return {};
}

// Throws what SQLite throws.
Result<DatabaseFile> open_once(const std::string& path, const std::string& mirror_path,
                               const LoadLimits& load) {
    DatabaseFile file;
    const bool was_there = exists(path);
    file.database =
        std::make_unique<SQLite::Database>(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    schema::configure(*file.database);
    BERTH_TRY(schema::check_version(*file.database, path));
    const bool was_empty = schema::migrate(*file.database) == 0;
    if (was_empty) {
        std::string restored = restore(*file.database, mirror_path);
        if (!restored.empty())
            file.incident = fmt::format("the database {} {}; {}; its events, decisions and ended "
                                        "operations are lost",
                                        path, was_there ? "was empty" : "was gone", restored);
    }
    file.state = schema::load(*file.database, load);
    BERTH_TRY(remember_place(file, path));
    return file;
}

} // namespace

bool DatabaseFile::is_in_place(const std::string& path) const {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

Result<DatabaseFile> open_database(const std::string& path, const std::string& mirror_path,
                                   const LoadLimits& load) {
    if (exists(path))
        BERTH_TRY(refuse_newer(path));
    std::string broken;
    try {
        return open_once(path, mirror_path, load);
    } catch (const SQLite::Exception& exception) {
        Error error = schema::store_error(path, exception);
        if (!schema::is_corruption(exception))
            return fail(std::move(error));
        broken = error.message;
    }
    BERTH_ASSIGN(std::string aside, move_aside(path));
    try {
        BERTH_ASSIGN(DatabaseFile file, open_once(path, mirror_path, load));
        std::string rest = std::move(file.incident);
        file.incident = fmt::format("the database was corrupt and is now at {} ({}); a new one is "
                                    "begun, what is alive is found again{}{}",
                                    aside, broken, rest.empty() ? "" : ": ", rest);
        return file;
    } catch (const SQLite::Exception& exception) {
        return fail(schema::store_error(path, exception));
    }
}

Result<DatabaseFile> read_database(const std::string& path, const std::string& mirror_path,
                                   const LoadLimits& load) {
    DatabaseFile file;
    Error why;
    // Without its log the file alone is all there is, and can be read where nothing can be made
    // beside it.
    const bool has_log = exists(path + "-wal");
    const std::string name = has_log ? path : fmt::format("file:{}?immutable=1", path);
    try {
        file.database = std::make_unique<SQLite::Database>(
            name, SQLite::OPEN_READONLY | (has_log ? 0 : SQLite::OPEN_URI), schema::kBusyMs);
        BERTH_TRY(schema::check_version(*file.database, path));
        file.state = schema::load(*file.database, load);
        BERTH_TRY(remember_place(file, path));
        return file;
    } catch (const SQLite::Exception& exception) {
        why = schema::store_error(path, exception);
        file.database.reset();
    }
    if (exists(mirror_path)) {
        if (auto mirrored = read_mirror(mirror_path)) {
            file.state = std::move(*mirrored);
            return file;
        }
    }
    return fail(std::move(why));
}

Result<std::unique_ptr<SQLite::Database>> begin_mirror(const std::string& path,
                                                       const StoredState& state) {
    for (const char* suffix : {"", "-wal", "-shm"})
        if (::unlink((path + suffix).c_str()) != 0 && errno != ENOENT)
            return fail_errno(path + suffix);
    // For berthd's user alone, wherever it lies; what SQLite makes beside it has the same mode.
    UniqueFd made(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!made)
        return fail_errno(path);
    made.reset();
    try {
        auto mirror = std::make_unique<SQLite::Database>(path, SQLite::OPEN_READWRITE);
        schema::configure(*mirror);
        mirror->exec("PRAGMA synchronous = OFF");
        (void)schema::migrate(*mirror);
        SQLite::Transaction transaction(*mirror);
        for (const StoreWrite& row : rows_of(state))
            schema::write(*mirror, row);
        schema::continue_revisions(*mirror, state.last_revision);
        transaction.commit();
        return mirror;
    } catch (const SQLite::Exception& exception) {
        return fail(schema::store_error(path, exception));
    }
}

Status write_mirror(SQLite::Database& mirror, const std::string& path,
                    const std::vector<StoreWrite>& batch) {
    auto is_history = [](const StoreWrite& row) {
        return std::holds_alternative<EventRecord>(row) ||
               std::holds_alternative<DecisionRecord>(row);
    };
    size_t history = 0;
    int64_t revision = 0;
    for (const StoreWrite& row : batch) {
        history += is_history(row) ? 1 : 0;
        if (const auto* event = std::get_if<EventRecord>(&row))
            revision = event->revision;
    }
    if (history == batch.size() && revision == 0)
        return {};
    try {
        SQLite::Transaction transaction(mirror);
        for (const StoreWrite& row : batch) {
            const auto* operation = std::get_if<OperationRecord>(&row);
            if (operation != nullptr && operation->ended_ms != 0)
                schema::forget_operation(mirror, operation->id);
            else if (!is_history(row))
                schema::write(mirror, row);
        }
        // A revision is given once, whatever is lost.
        if (revision != 0)
            schema::continue_revisions(mirror, revision);
        transaction.commit();
        return {};
    } catch (const SQLite::Exception& exception) {
        return fail(schema::store_error(path, exception));
    }
}

} // namespace berth
