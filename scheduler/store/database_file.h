// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/store/records.h"
#include "scheduler/store/store.h"

#include <SQLiteCpp/SQLiteCpp.h>

#include <memory>
#include <string>
#include <sys/stat.h>

// The file under the store: opened, found gone or broken, made anew. Private to the store; blocks.
namespace berth {

struct DatabaseFile {
    std::unique_ptr<SQLite::Database> database;
    StoredState state;
    std::string incident; // what was lost or restored, in words
    dev_t device = 0;     // which file it is, whatever its name says later
    ino_t inode = 0;

    // Whether the name still leads to the file that is open.
    bool is_in_place(const std::string& path) const;
};

// Opens or creates it. What is corrupt is moved aside; what is empty then is filled from the
// mirror, if there is one. Mismatch (untouched): a newer schema.
Result<DatabaseFile> open_database(const std::string& path, const std::string& mirror_path,
                                   const LoadLimits& load);

// The records of a database that cannot be written: read-only, else those of the mirror. The
// database handle is null in the latter case.
Result<DatabaseFile> read_database(const std::string& path, const std::string& mirror_path,
                                   const LoadLimits& load);

// The mirror, begun anew with what is in `state`. Its rows survive the death of this process, not
// of the machine: nothing is synced.
Result<std::unique_ptr<SQLite::Database>> begin_mirror(const std::string& path,
                                                       const StoredState& state);
// Writes what of a batch is no history.
Status write_mirror(SQLite::Database& mirror, const std::string& path,
                    const std::vector<StoreWrite>& batch);

} // namespace berth
