// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/keeper_link.h"

#include "base/fault_point.h"
#include "base/log.h"

#include <fmt/format.h>

namespace berth {

KeeperLink::KeeperLink(boost::asio::io_context& context, KeeperStart start,
                       std::unique_ptr<SystemdStore> systemd, std::function<void()> on_refill)
    : context_(context), start_(std::move(start)), systemd_(std::move(systemd)),
      on_refill_(std::move(on_refill)), retry_(context), pool_(context, 1) {}

Result<std::vector<KeptEntry>> KeeperLink::start() {
    if (!systemd_) {
        BERTH_ASSIGN(keeper_, ensure_keeper(start_));
    }
    std::vector<KeptEntry> entries;
    BERTH_ASSIGN(std::vector<KeeperEntry> listed, store().list());
    for (const KeeperEntry& one : listed) {
        BERTH_ASSIGN(KeptEntry entry, store().get(one.key));
        entries.push_back(std::move(entry));
    }
    if (!systemd_)
        watch(keeper_.process.pidfd(), keeper_.process.id());
    return entries;
}

std::string KeeperLink::identity() const {
    return systemd_ ? "systemd" : fmt::format("{} {}", process_.pid, process_.start_ticks);
}

void KeeperLink::watch(int pidfd, ProcessId process) {
    process_ = process;
    auto watched = FdWatch::open(context_, pidfd, [this, process] { died(process.pid); });
    if (watched)
        watch_ = std::move(*watched);
    else
        log::error("the keeper cannot be watched: {}, going on without", watched.error().message);
}

void KeeperLink::died(int pid) {
    if (pid != process_.pid)
        return;
    log::warn("berth-keeper has ended pid={}; starting another one and filling it", pid);
    revive();
}

// On the worker: a keeper that answers, whatever became of the last one.
Status KeeperLink::reach() {
    if (is_connected())
        if (auto answered = store().ping(); answered || systemd_)
            return answered ? Status() : Status(fail(answered.error()));
    (void)keeper_.process.try_wait();
    BERTH_ASSIGN(keeper_, ensure_keeper(start_));
    return {};
}

void KeeperLink::revive() {
    struct Reached {
        Status status;
        UniqueFd pidfd;
        ProcessId process;
        static Reached of_failure(Error error) { return {fail(std::move(error)), {}, {}}; }
    };
    pool_.run(
        [this] {
            Reached reached;
            reached.status = reach();
            if (reached.status) {
                reached.process = keeper_.process.id();
                if (auto fd = duplicate_of(keeper_.process.pidfd()))
                    reached.pidfd = std::move(*fd);
            }
            return reached;
        },
        [this](Reached reached) {
            if (!reached.status) {
                log::error("berth-keeper cannot be started: {}; trying again in 1 s",
                           reached.status.error().message);
                process_ = {};
                retry_.expires_after(std::chrono::seconds(1));
                retry_.async_wait([this](boost::system::error_code error) {
                    if (!error)
                        revive();
                });
                return;
            }
            if (reached.process == process_)
                return;
            ++restarts_;
            watch(reached.pidfd.get(), reached.process);
            on_refill_();
        });
}

Status KeeperLink::exchange_put(const std::string& key, const std::string& meta,
                                const std::vector<int>& fds) {
    Status put = is_connected() ? store().put(key, meta, fds)
                                : fail(ErrorCode::kUnavailable, "the keeper is not there");
    if (put || is_connected())
        return put;
    // The connection broke: the keeper may have died under us. Everything else is refilled when its
    // end is noticed; this one must not wait for that.
    BERTH_TRY(reach());
    return store().put(key, meta, fds);
}

void KeeperLink::put(std::string key, std::string meta, std::vector<UniqueFd> fds, Then then) {
    pool_.run(
        [this, key = std::move(key), meta = std::move(meta), fds = std::move(fds)] {
            std::vector<int> numbers;
            for (const UniqueFd& fd : fds)
                numbers.push_back(fd.get());
            fault_point("keeper.put");
            Status put = exchange_put(key, meta, numbers);
            fault_point("keeper.has");
            return put;
        },
        std::move(then));
}

void KeeperLink::drop(std::string key, Then then) {
    pool_.run(
        [this, key = std::move(key)]() -> Status {
            if (!is_connected())
                BERTH_TRY(reach());
            fault_point("keeper.drop");
            auto dropped = store().drop(key);
            fault_point("keeper.dropped");
            if (!dropped && dropped.error().code == ErrorCode::kNotFound)
                return {};
            return dropped;
        },
        std::move(then));
}

} // namespace berth
