// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/store/records.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace berth {

// Bounds on what is kept; the oldest rows beyond them are dropped.
struct StoreLimits {
    int64_t events_max = 100'000;
    int64_t operations_max = 2'000;
    int64_t decisions_max = 2'000;
    size_t queue_batches_max = 4'096; // posted and not yet written
};

// How many of the newest rows load_all() returns.
struct LoadLimits {
    int64_t events = 2'000;
    int64_t operations = 200;
    int64_t decisions = 100;
};

enum class Durability {
    kIntent, // on disk (fsync) before the completion is called: what an action must not run ahead
             // of
    kRecord, // in the log; a power cut, not a crash of this process, may lose the last ones
};

// berthd's memory across its own death: one SQLite database, written on one worker thread.
//
// Thread rule: post(), read_events() and the destructor are called from one thread (the decision
// thread) and never block on the disk; completions run on the worker thread, so they only post.
// The destructor writes what is queued, then joins. A batch is one transaction: all of it or
// nothing is there after a crash, and batches are written in the order they were posted.
//
// Failures are typed: ResourceExhausted/DiskFull, Unavailable/StoreLocked, Corrupt/StoreCorrupt,
// Io.
class Store {
  public:
    struct Opened;
    // Opens or creates DIRECTORY/berth.db and brings its schema up to date. A database that is
    // corrupt is moved aside (berth.db.corrupt-N) and a new one is begun. Mismatch: it was written
    // by a newer berthd.
    static Result<Opened> open(const std::string& directory, StoreLimits limits = {},
                               LoadLimits load = {});
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;
    ~Store();

    using Completion = std::function<void(Status)>;
    // Writes a batch as one transaction. With a full queue the completion is called at once, on
    // the caller's thread, with ResourceExhausted.
    void post(std::vector<StoreWrite> batch, Durability durability, Completion completion);

    using EventsCompletion = std::function<void(Result<std::vector<EventRecord>>)>;
    // Events with a revision above `since`, oldest first, at most `limit`.
    void read_events(int64_t since, int64_t limit, EventsCompletion completion);

    // Waits until all that was posted before is written; for tests and for the end.
    void flush();

    const std::string& path() const;

  private:
    struct Worker;
    explicit Store(std::unique_ptr<Worker> worker);
    std::unique_ptr<Worker> worker_;
};

struct Store::Opened {
    std::unique_ptr<Store> store;
    StoredState state;
    std::string warning; // not empty: what was lost and where the broken file went
};

} // namespace berth
