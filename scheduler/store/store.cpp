// SPDX-License-Identifier: Apache-2.0
#include "scheduler/store/store.h"

#include "base/unique_fd.h"
#include "scheduler/store/store_worker.h"

#include <fmt/format.h>

namespace berth {

namespace {

constexpr const char* kFileName = "berth.db";
constexpr const char* kMirrorName = "records.db";

} // namespace

Result<Store::Opened> Store::open(const std::string& directory, StoreLimits limits, LoadLimits load,
                                  const std::string& mirror_directory) {
    const std::string path = directory + "/" + kFileName;
    const std::string mirror =
        mirror_directory.empty() ? std::string() : mirror_directory + "/" + kMirrorName;
    Opened opened;
    std::optional<Error> trouble;
    auto made = make_directories(directory, 0750);
    auto file = made ? open_database(path, mirror, load) : Result<DatabaseFile>(fail(made.error()));
    if (!file) {
        if (file.error().reason == "NewerSchema")
            return fail(file.error());
        trouble = file.error();
        file = read_database(path, mirror, load);
        if (!file) // neither written nor read: without records nothing alive can be told apart
            return fail(*trouble);
    }
    opened.warning = std::exchange(file->incident, {});
    opened.state = file->state;
    opened.store.reset(new Store(
        std::make_unique<Worker>(path, mirror, limits, std::move(*file), std::move(trouble))));
    return opened;
}

Store::Store(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}
Store::~Store() = default;

void Store::post(std::vector<StoreWrite> batch, Durability durability, Completion completion) {
    Worker::Write write{std::move(batch), durability, std::move(completion)};
    if (worker_->push(write) || !write.completion)
        return;
    write.completion(
        fail(ErrorCode::kResourceExhausted,
             fmt::format("{}: {} batches wait to be written: the disk does not keep up",
                         worker_->path(), worker_->limits().queue_batches_max),
             "StoreQueueFull"));
}

void Store::read_events(int64_t since, int64_t limit, EventsCompletion completion) {
    worker_->push(Worker::ReadEvents{since, limit, std::move(completion)});
}

void Store::find_operation(std::string request_id, OperationCompletion completion) {
    worker_->push(Worker::FindOperation{std::move(request_id), std::move(completion)});
}

void Store::watch(Watcher watcher) {
    worker_->watch(std::move(watcher));
}

StoreStatus Store::status() const {
    return worker_->status();
}

void Store::flush() {
    worker_->flush();
}

const std::string& Store::path() const {
    return worker_->path();
}

} // namespace berth
