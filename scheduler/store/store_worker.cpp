// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/store_worker.h"

#include "base/fault_point.h"
#include "base/unique_fd.h"
#include "scheduler/store/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace berth {

namespace {

// Retention is looked after when this much was written since.
constexpr int64_t kRowsBetweenCare = 512;
constexpr int64_t kBytesBetweenCare = int64_t{4} << 20;
constexpr int64_t kLogsTold = 4; // times what it may be
constexpr const char* kNoMirror = ": going on without a mirror of the records";

int64_t wall_now_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

int64_t size_of(const std::string& path) {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0 ? static_cast<int64_t>(status.st_size) : 0;
}

// Of what takes most room.
int64_t bytes_in(const StoreWrite& row) {
    if (const auto* decision = std::get_if<DecisionRecord>(&row))
        return static_cast<int64_t>(decision->document.size());
    if (const auto* event = std::get_if<EventRecord>(&row))
        return static_cast<int64_t>(event->message.size());
    return 0;
}

// "Instance Operation": which kinds of rows, for the names of fault points.
std::string kinds_of(const std::vector<StoreWrite>& batch) {
    static constexpr std::array kNames = {
        "Instance", "Operation", "Decision",       "Event",           "Placement",
        "Policy",   "Meta",      "ForgetInstance", "ForgetPlacement", "ForgetPolicy"};
    static_assert(kNames.size() == std::variant_size_v<StoreWrite>);
    std::array<bool, kNames.size()> has{};
    for (const StoreWrite& row : batch)
        has[row.index()] = true;
    std::string kinds;
    for (size_t i = 0; i < has.size(); ++i)
        if (has[i])
            kinds += (kinds.empty() ? "" : " ") + std::string(kNames[i]);
    return kinds.empty() ? "nothing" : kinds;
}

} // namespace

Store::Worker::Worker(std::string path, std::string mirror_path, StoreLimits limits,
                      DatabaseFile file, std::optional<Error> trouble)
    : path_(std::move(path)), mirror_path_(std::move(mirror_path)), limits_(limits),
      file_(std::move(file)), reopen_(trouble.has_value()),
      first_revision_(file_.state.first_revision), trouble_(std::move(trouble)),
      trouble_since_(Clock::now()), retry_delay_(limits_.retry_min) {
    if (!mirror_path_.empty() && !trouble_) {
        if (auto begun = begin_mirror(mirror_path_, file_.state))
            mirror_ = std::move(*begun);
        else
            first_incident_ = begun.error().message + kNoMirror;
    }
    file_.state = {};
    retry_at_ = Clock::now() + retry_delay_;
    thread_ = std::thread([this] { run(); });
}

Store::Worker::~Worker() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

bool Store::Worker::push(Write& write) {
    std::lock_guard lock(mutex_);
    if (writes_.size() >= limits_.queue_batches_max)
        return false;
    writes_.push_back(std::move(write));
    changed_.notify_all();
    return true;
}

void Store::Worker::push(Read read) {
    std::lock_guard lock(mutex_);
    reads_.push_back(std::move(read));
    changed_.notify_all();
}

void Store::Worker::watch(Watcher watcher) {
    Lock lock(mutex_);
    watcher_ = std::move(watcher);
    report(lock, std::exchange(first_incident_, {}));
}

StoreStatus Store::Worker::status() const {
    std::lock_guard lock(mutex_);
    return StoreStatus{trouble_, trouble_since_, writes_.size(), size_of(path_), wal_bytes()};
}

void Store::Worker::flush() {
    Lock lock(mutex_);
    changed_.wait(lock, [&] {
        return trouble_.has_value() || (writes_.empty() && reads_.empty() && !busy_);
    });
}

int64_t Store::Worker::wal_bytes() const {
    return size_of(path_ + "-wal");
}

// The watcher only posts, so that it may be called with the lock held: reports stay in order.
void Store::Worker::report(Lock&, std::string incident) {
    if (watcher_)
        watcher_(StoreReport{trouble_, std::move(incident), first_revision_});
}

void Store::Worker::set_trouble(Lock& lock, std::optional<Error> trouble) {
    const bool same = trouble_.has_value() == trouble.has_value() &&
                      (!trouble || trouble->reason == trouble_->reason);
    if (!trouble_ && trouble)
        trouble_since_ = Clock::now();
    trouble_ = std::move(trouble);
    retry_delay_ = trouble_ ? std::min<Clock::duration>(same ? retry_delay_ * 2 : retry_delay_,
                                                        limits_.retry_max)
                            : limits_.retry_min;
    retry_at_ = Clock::now() + retry_delay_;
    if (!same)
        report(lock, {});
    changed_.notify_all();
}

void Store::Worker::run() {
    Lock lock(mutex_);
    for (;;) {
        if (!reads_.empty()) {
            read_next(lock);
        } else if (stopping_ && writes_.empty()) {
            return;
        } else if (trouble_ && !stopping_ && Clock::now() < retry_at_) {
            changed_.wait_until(lock, retry_at_);
        } else if (!writes_.empty() || trouble_) {
            if (!write_next(lock) && stopping_)
                return give_up(lock);
        } else {
            changed_.wait(lock);
        }
    }
}

void Store::Worker::read_next(Lock& lock) {
    Read job = std::move(reads_.front());
    reads_.pop_front();
    busy_ = true;
    lock.unlock();
    std::visit([this](const auto& one) { answer(one); }, job);
    job = {};
    lock.lock();
    busy_ = false;
    changed_.notify_all();
}

// Tries the oldest batch, which stays where it is until it is written; in trouble without one, an
// empty batch tells whether the disk is well again. False: in trouble.
bool Store::Worker::write_next(Lock& lock) {
    static const Write nothing{{}, Durability::kIntent, {}};
    const bool probes = writes_.empty();
    const Write& head = probes ? nothing : writes_.front();
    busy_ = true;
    lock.unlock();
    Outcome outcome = write(head);
    lock.lock();
    busy_ = false;
    const bool well = !outcome.trouble;
    // Before the completion: whoever hears that this batch is written knows that all is well.
    if (!well || trouble_)
        set_trouble(lock, well ? std::nullopt : std::optional(outcome.status.error()));
    if (!incidents_.empty())
        report(lock, std::exchange(incidents_, {}));
    if (!well)
        return false;
    if (!probes) {
        Write done = std::move(writes_.front());
        writes_.pop_front();
        busy_ = true;
        lock.unlock();
        fault_point([&] { return "store.told " + kinds_of(done.batch); });
        if (done.completion)
            done.completion(std::move(outcome.status));
        for (const StoreWrite& row : done.batch)
            bytes_since_care_ += bytes_in(row);
        rows_since_care_ += static_cast<int64_t>(done.batch.size());
        const int64_t first = first_revision_;
        if (care_again_ || rows_since_care_ >= kRowsBetweenCare ||
            bytes_since_care_ >= kBytesBetweenCare)
            take_care();
        done = {};
        lock.lock();
        busy_ = false;
        if (first != first_revision_ || !incidents_.empty())
            report(lock, std::exchange(incidents_, {}));
    }
    changed_.notify_all();
    return true;
}

// The process ends and the disk still refuses: those who wait are told.
void Store::Worker::give_up(Lock& lock) {
    const Error why = *trouble_;
    std::deque<Write> left = std::move(writes_);
    writes_.clear();
    lock.unlock();
    for (Write& one : left)
        if (one.completion)
            one.completion(fail(why));
    lock.lock();
}

// The file may have gone, or been replaced, under an open connection: what is written into it then
// nobody would ever find. The old connection goes first: the last one to a file removes, by name,
// what lies beside it, and one that was opened for reading makes others of this process read-only.
Status Store::Worker::connect() {
    if (file_.database && !reopen_ && file_.is_in_place(path_))
        return {};
    file_.database.reset();
    mirror_.reset();
    reopen_ = true;
    BERTH_TRY(make_directories(std::filesystem::path(path_).parent_path().string(), 0750));
    auto opened = open_database(path_, mirror_path_, LoadLimits{});
    if (!opened) { // meanwhile it is read, if that is possible
        if (auto readable = read_database(path_, {}, LoadLimits{0, 0, 0}))
            file_ = std::move(*readable);
        file_.state = {};
        return fail(opened.error());
    }
    file_ = std::move(*opened);
    if (!mirror_path_.empty())
        if (auto begun = begin_mirror(mirror_path_, file_.state))
            mirror_ = std::move(*begun);
    first_revision_ = file_.state.first_revision;
    file_.state = {};
    incidents_ += std::exchange(file_.incident, {});
    reopen_ = false;
    synchronous_full_ = true;
    return {};
}

Store::Worker::Outcome Store::Worker::write(const Write& write) {
    try {
        if (auto connected = connect(); !connected)
            return {std::move(connected), true};
        SQLite::Database& database = *file_.database;
        const bool full = write.durability == Durability::kIntent;
        if (full != synchronous_full_)
            database.exec(full ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
        synchronous_full_ = full;
        fault_point([&] { return "store.begin " + kinds_of(write.batch); });
        SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
        for (const StoreWrite& row : write.batch)
            schema::write(database, row);
        // An empty batch asks whether the disk takes anything at all, and what came before it with
        // it: SQLite syncs nothing for a transaction that has written nothing.
        if (write.batch.empty() && full)
            database.exec("PRAGMA user_version = " + std::to_string(schema::version()));
        fault_point([&] { return "store.commit " + kinds_of(write.batch); });
        transaction.commit();
        fault_point([&] { return "store.committed " + kinds_of(write.batch); });
        mirror(write.batch);
        fault_point([&] { return "store.mirrored " + kinds_of(write.batch); });
        return {};
    } catch (const SQLite::Exception& exception) {
        reopen_ = reopen_ || schema::needs_reopen(exception);
        return {fail(schema::store_error(path_, exception)), schema::is_trouble(exception)};
    }
}

void Store::Worker::mirror(const std::vector<StoreWrite>& batch) {
    if (!mirror_)
        return;
    if (auto written = write_mirror(*mirror_, mirror_path_, batch); !written) {
        incidents_ += written.error().message + kNoMirror;
        mirror_.reset();
    }
}

// The batch before it is written and told; a failure here is met again by the next one.
void Store::Worker::take_care() {
    rows_since_care_ = bytes_since_care_ = 0;
    try {
        care_again_ = schema::trim(*file_.database, limits_, wall_now_ms());
        first_revision_ = schema::first_revision(*file_.database);
        if (wal_bytes() > limits_.wal_bytes_max)
            shorten_log();
    } catch (const SQLite::Exception&) {
        care_again_ = true;
    }
}

// SQLite moves the log into the database by itself, unless somebody reads an old state of it.
void Store::Worker::shorten_log() {
    file_.database->setBusyTimeout(0);
    (void)file_.database->execAndGet("PRAGMA wal_checkpoint(TRUNCATE)");
    file_.database->setBusyTimeout(schema::kBusyMs);
    const bool held = wal_bytes() > limits_.wal_bytes_max * kLogsTold;
    if (held && !log_told_)
        incidents_ += fmt::format("{}-wal has grown to {} MiB, since another process reads the "
                                  "database all the time: find it with `fuser {}` and end it",
                                  path_, wal_bytes() >> 20, path_);
    log_told_ = held;
}

template <typename Look>
auto Store::Worker::read(Look look) -> Result<decltype(look(std::declval<SQLite::Database&>()))> {
    if (!file_.database)
        return fail(ErrorCode::kUnavailable, fmt::format("{}: the database is not open now", path_),
                    "StoreUnreachable");
    try {
        return look(*file_.database);
    } catch (const SQLite::Exception& exception) {
        return fail(schema::store_error(path_, exception));
    }
}

void Store::Worker::answer(const ReadEvents& asked) {
    asked.completion(read([&asked](SQLite::Database& database) {
        return schema::read_events(database, asked.since, asked.limit);
    }));
}

void Store::Worker::answer(const FindOperation& asked) {
    asked.completion(read([&asked](SQLite::Database& database) {
        return schema::find_operation(database, asked.request_id);
    }));
}

} // namespace berth
