// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/store/database_file.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

namespace berth {

// The store's thread and its queues. `mutex_` guards what stands below it; the database and the
// mirror belong to the thread. Private to the store.
class Store::Worker {
  public:
    struct Write {
        std::vector<StoreWrite> batch;
        Durability durability = Durability::kRecord;
        Completion completion;
    };
    struct ReadEvents {
        int64_t since = 0;
        int64_t limit = 0;
        EventsCompletion completion;
    };
    struct FindOperation {
        std::string request_id;
        OperationCompletion completion;
    };
    using Read = std::variant<ReadEvents, FindOperation>;

    Worker(std::string path, std::string mirror_path, StoreLimits limits, DatabaseFile file,
           std::optional<Error> trouble);
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;
    ~Worker();

    // Takes the write; false, and nothing taken, when the queue is full.
    bool push(Write& write);
    void push(Read read);
    void watch(Watcher watcher);
    StoreStatus status() const;
    void flush();
    const std::string& path() const { return path_; }
    const StoreLimits& limits() const { return limits_; }

  private:
    using Lock = std::unique_lock<std::mutex>;
    using Clock = std::chrono::steady_clock;

    void run();
    bool write_next(Lock& lock);
    void read_next(Lock& lock);
    void give_up(Lock& lock);
    void set_trouble(Lock& lock, std::optional<Error> trouble);
    void report(Lock& lock, std::string incident);

    // On the thread, without the mutex.
    struct Outcome {
        Status status;
        bool trouble = false; // the same batch is to be tried again
    };
    Outcome write(const Write& write);
    Status connect();
    void mirror(const std::vector<StoreWrite>& batch);
    void take_care(); // of the sizes, between two batches
    void shorten_log();
    void answer(const ReadEvents& read);
    void answer(const FindOperation& find);
    template <typename Look>
    auto read(Look look) -> Result<decltype(look(std::declval<SQLite::Database&>()))>;
    int64_t wal_bytes() const;

    const std::string path_;
    const std::string mirror_path_; // empty: none
    const StoreLimits limits_;

    DatabaseFile file_; // its state is not kept
    std::unique_ptr<SQLite::Database> mirror_;
    bool reopen_ = false;
    bool log_told_ = false;
    bool synchronous_full_ = true;
    int64_t rows_since_care_ = 0;
    int64_t bytes_since_care_ = 0;
    bool care_again_ = true; // a short life must not let the tables grow without bound
    int64_t first_revision_ = 0;
    std::string incidents_; // to be reported

    mutable std::mutex mutex_;
    std::string first_incident_;
    std::condition_variable changed_;
    std::deque<Write> writes_;
    std::deque<Read> reads_;
    bool busy_ = false;
    bool stopping_ = false;
    std::optional<Error> trouble_;
    Clock::time_point trouble_since_;
    Clock::time_point retry_at_;
    Clock::duration retry_delay_{};
    Watcher watcher_;
    std::thread thread_; // last: it uses all the others
};

} // namespace berth
