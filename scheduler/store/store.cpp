// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/store.h"

#include "base/unique_fd.h"
#include "scheduler/store/schema.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>

namespace berth {

namespace {

constexpr const char* kFileName = "berth.db";
constexpr int kBatchesBetweenTrims = 512;

// A failure inside SQLite, and whether it means that the file is broken.
struct OpenFailure {
    Error error;
    bool corrupt = false;
};

struct OpenedFile {
    std::unique_ptr<SQLite::Database> database;
    StoredState state;
};

tl::expected<OpenedFile, OpenFailure> open_file(const std::string& path, const LoadLimits& load) {
    try {
        OpenedFile opened;
        opened.database =
            std::make_unique<SQLite::Database>(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
        schema::configure(*opened.database);
        if (auto migrated = schema::migrate(*opened.database); !migrated)
            return tl::unexpected(OpenFailure{migrated.error(), false});
        opened.state = schema::load(*opened.database, load);
        return opened;
    } catch (const SQLite::Exception& exception) {
        return tl::unexpected(
            OpenFailure{schema::store_error(path, exception), schema::is_corruption(exception)});
    }
}

// Renames the database and what SQLite keeps beside it. Nothing is deleted: an operator may want
// to look.
Result<std::string> move_aside(const std::string& path) {
    std::string stem = fmt::format("{}.corrupt-{}", path, std::time(nullptr));
    std::string target = stem;
    for (int n = 2; ::access(target.c_str(), F_OK) == 0; ++n)
        target = fmt::format("{}-{}", stem, n);
    if (std::rename(path.c_str(), target.c_str()) != 0)
        return fail_errno(fmt::format("moving the broken database {} aside", path));
    for (const char* suffix : {"-wal", "-shm"})
        std::rename((path + suffix).c_str(), (target + suffix).c_str());
    return target;
}

} // namespace

// The worker thread and its queue. `mutex` guards queue, writing and stopping; the database belongs
// to the thread.
struct Store::Worker {
    struct Job {
        std::vector<StoreWrite> batch;
        Durability durability = Durability::kRecord;
        Completion completion;
        int64_t since = 0;
        int64_t limit = 0;
        EventsCompletion events; // set: a read
    };

    std::string path;
    StoreLimits limits;
    std::unique_ptr<SQLite::Database> database;
    int batches_since_trim = 0;
    bool synchronous_full = true;

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> queue;
    bool busy = false;
    bool stopping = false;
    std::thread thread;

    void run() {
        std::unique_lock lock(mutex);
        for (;;) {
            changed.wait(lock, [&] { return stopping || !queue.empty(); });
            if (queue.empty())
                return;
            Job job = std::move(queue.front());
            queue.pop_front();
            busy = true;
            lock.unlock();
            carry_out(job);
            job = {};
            lock.lock();
            busy = false;
            changed.notify_all();
        }
    }

    void carry_out(Job& job) {
        if (job.events) {
            job.events(read(job));
            return;
        }
        Status written = write(job);
        if (job.completion)
            job.completion(std::move(written));
    }

    Result<std::vector<EventRecord>> read(const Job& job) {
        try {
            return schema::read_events(*database, job.since, job.limit);
        } catch (const SQLite::Exception& exception) {
            return fail(schema::store_error(path, exception));
        }
    }

    Status write(const Job& job) {
        try {
            bool full = job.durability == Durability::kIntent;
            if (full != synchronous_full)
                database->exec(full ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
            synchronous_full = full;
            SQLite::Transaction transaction(*database, SQLite::TransactionBehavior::IMMEDIATE);
            for (const StoreWrite& row : job.batch)
                schema::write(*database, row);
            if (++batches_since_trim >= kBatchesBetweenTrims) {
                schema::trim(*database, limits);
                batches_since_trim = 0;
            }
            transaction.commit();
            return {};
        } catch (const SQLite::Exception& exception) {
            return fail(schema::store_error(path, exception));
        }
    }
};

Result<Store::Opened> Store::open(const std::string& directory, StoreLimits limits,
                                  LoadLimits load) {
    BERTH_TRY(make_directories(directory, 0750));
    std::string path = directory + "/" + kFileName;
    std::string warning;
    auto file = open_file(path, load);
    if (!file && file.error().corrupt) {
        BERTH_ASSIGN(std::string aside, move_aside(path));
        warning =
            fmt::format("the database was corrupt and is now at {}; its operations, decisions "
                        "and events are lost, what is alive is found again ({})",
                        aside, file.error().error.message);
        file = open_file(path, load);
    }
    if (!file)
        return fail(file.error().error);

    auto worker = std::make_unique<Worker>();
    worker->path = path;
    worker->limits = limits;
    worker->database = std::move(file->database);
    // A short life must not let the tables grow without bound.
    worker->batches_since_trim = kBatchesBetweenTrims / 2;
    Opened opened;
    opened.store.reset(new Store(std::move(worker)));
    opened.state = std::move(file->state);
    opened.warning = std::move(warning);
    return opened;
}

Store::Store(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {
    worker_->thread = std::thread([w = worker_.get()] { w->run(); });
}

Store::~Store() {
    {
        std::lock_guard lock(worker_->mutex);
        worker_->stopping = true;
    }
    worker_->changed.notify_all();
    worker_->thread.join();
}

void Store::post(std::vector<StoreWrite> batch, Durability durability, Completion completion) {
    {
        std::lock_guard lock(worker_->mutex);
        if (worker_->queue.size() < worker_->limits.queue_batches_max) {
            Worker::Job job;
            job.batch = std::move(batch);
            job.durability = durability;
            job.completion = std::move(completion);
            worker_->queue.push_back(std::move(job));
            worker_->changed.notify_all();
            return;
        }
    }
    if (completion)
        completion(fail(ErrorCode::kResourceExhausted,
                        fmt::format("{}: {} batches wait to be written: the disk does not keep up",
                                    worker_->path, worker_->limits.queue_batches_max),
                        "StoreQueueFull"));
}

void Store::read_events(int64_t since, int64_t limit, EventsCompletion completion) {
    std::lock_guard lock(worker_->mutex);
    Worker::Job job;
    job.since = since;
    job.limit = limit;
    job.events = std::move(completion);
    worker_->queue.push_back(std::move(job));
    worker_->changed.notify_all();
}

void Store::flush() {
    std::unique_lock lock(worker_->mutex);
    worker_->changed.wait(lock, [&] { return worker_->queue.empty() && !worker_->busy; });
}

const std::string& Store::path() const {
    return worker_->path;
}

} // namespace berth
