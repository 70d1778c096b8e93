// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/store/records.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace berth {

// Bounds on what is kept. Of history (events, decisions, operations that have ended) the oldest
// goes first; records of what is (instances, placements, policies, running operations) never go.
struct StoreLimits {
    int64_t events_max = 100'000;
    int64_t operations_max = 20'000;
    int64_t decisions_max = 50'000;
    std::chrono::milliseconds age_max = std::chrono::hours(24 * 30);
    // However the clock jumps, this many of the newest of each kind are not dropped for their age.
    int64_t newest_min = 1'000;
    int64_t bytes_max = int64_t{512} << 20;   // of the database; history goes when it holds more
    int64_t wal_bytes_max = int64_t{8} << 20; // of the log beside it, before it is forced back
    size_t queue_batches_max = 4'096;         // posted and not yet written
    std::chrono::milliseconds retry_min{100}; // between two tries at a disk that refuses
    std::chrono::milliseconds retry_max{1'000};
};

// How many of the newest rows a new daemon is given.
struct LoadLimits {
    int64_t events = 2'000;
    int64_t operations = 200; // besides all that have not ended
    int64_t decisions = 100;
};

enum class Durability {
    kIntent, // on disk (fsync) before the completion is called: what an action must not run ahead
             // of
    kRecord, // in the log; a power cut, not a crash of this process, may lose the last ones
};

// What has changed about the store itself.
struct StoreReport {
    std::optional<Error> trouble; // nothing can be written now, and why; empty: all is well
    std::string incident;         // something was lost or put right, in words; mostly empty
    int64_t first_revision = 0;   // the oldest event that is kept
};

struct StoreStatus {
    std::optional<Error> trouble;
    std::chrono::steady_clock::time_point trouble_since;
    size_t batches_waiting = 0;
    int64_t bytes = 0; // the database
    int64_t wal_bytes = 0;
};

// berthd's memory across its own death: one SQLite database, written on one worker thread.
//
// Thread rule: post(), read_events(), find_operation(), watch() and the destructor are called from
// one thread (the decision thread) and never block on the disk; completions and the watcher run on
// the worker thread, so they only post. status() may be called from any thread. A batch is one
// transaction: all of it or nothing is there after a crash, and batches are written in the order
// they were posted. The destructor writes what is queued, if that is possible, then joins.
//
// A disk that refuses (full, read-only, locked, broken, gone) fails no batch: the batch waits, the
// watcher is told why, reads go on, and the worker tries again until it succeeds. A database that
// was removed or is corrupt is made anew from the mirror: a copy of the records that are no
// history, in a folder that lives as long as the engines do (that of the sockets).
//
// Failures of a completion: AlreadyExists/Constraint; ResourceExhausted/StoreQueueFull; and, when
// the store is destroyed in trouble, that trouble: ResourceExhausted/DiskFull,
// Unavailable/{StoreLocked, StoreReadOnly}, Corrupt/StoreCorrupt, Io/{StoreUnreachable,
// StoreFailed}.
class Store {
  public:
    struct Opened;
    // Opens or creates DIRECTORY/berth.db and brings its schema up to date. One that is corrupt is
    // moved aside (berth.db.corrupt-N). One that can be read but not written, or whose mirror can,
    // opens in trouble. Mismatch: it was written by a newer berthd; nothing was touched.
    static Result<Opened> open(const std::string& directory, StoreLimits limits = {},
                               LoadLimits load = {}, const std::string& mirror_directory = {});
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;
    ~Store();

    using Completion = std::function<void(Status)>;
    // Writes a batch as one transaction. With a full queue the completion is called at once, on
    // the caller's thread, with ResourceExhausted.
    void post(std::vector<StoreWrite> batch, Durability durability, Completion completion);

    using EventsCompletion = std::function<void(Result<std::vector<EventRecord>>)>;
    // Events with a revision above `since`, oldest first, at most `limit`. Reads do not wait for
    // writes that were posted before.
    void read_events(int64_t since, int64_t limit, EventsCompletion completion);

    using OperationCompletion = std::function<void(Result<std::optional<OperationRecord>>)>;
    // The newest operation that was begun under that request id, as long as it is kept. As above.
    void find_operation(std::string request_id, OperationCompletion completion);

    using Watcher = std::function<void(StoreReport)>;
    // Called at once with how things are, and from then on with each change.
    void watch(Watcher watcher);
    StoreStatus status() const;

    // Waits until all that was posted before is written, or the disk refuses it.
    void flush();

    const std::string& path() const;

  private:
    class Worker;
    explicit Store(std::unique_ptr<Worker> worker);
    std::unique_ptr<Worker> worker_;
};

struct Store::Opened {
    std::unique_ptr<Store> store;
    StoredState state;
    std::string warning; // not empty: what was lost, and where the broken file went
};

} // namespace berth
