// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/keep/keeper_client.h"
#include "cache/keep/systemd_store.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/worker_pool.h"

#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace berth {

// berthd's line to its keeper. The keeper is found or started at start(); when it dies it is
// started again and on_refill is called, to put everything that is held here into the new one.
// Given a SystemdStore, the service manager keeps instead: no process is started or watched.
//
// Thread rule: called on the decision thread; the exchanges run one at a time on a worker thread,
// in the order of the calls. `then` is called on the decision thread. The destructor waits for the
// exchange under way.
class KeeperLink {
  public:
    using Then = std::function<void(Status)>;

    KeeperLink(boost::asio::io_context& context, KeeperStart start,
               std::unique_ptr<SystemdStore> systemd, std::function<void()> on_refill);
    KeeperLink(const KeeperLink&) = delete;
    KeeperLink& operator=(const KeeperLink&) = delete;
    ~KeeperLink() { pool_.stop(); }

    // Blocks: only before the io_context runs. All that the keeper holds.
    Result<std::vector<KeptEntry>> start();

    // The descriptors are the link's until the keeper has duplicates.
    void put(std::string key, std::string meta, std::vector<UniqueFd> fds, Then then);
    // A key that is not there is as good as dropped.
    void drop(std::string key, Then then);

    bool is_systemd() const { return systemd_ != nullptr; }
    int pid() const { return process_.pid; } // 0 with systemd
    // Of who keeps now: another one has nothing of what it was not given.
    std::string identity() const;
    uint64_t restarts() const { return restarts_; }

  private:
    DescriptorStore& store() {
        return systemd_ ? static_cast<DescriptorStore&>(*systemd_) : keeper_.client;
    }
    bool is_connected() const { return systemd_ || keeper_.client; }
    Status reach();
    void watch(int pidfd, ProcessId process);
    void died(int pid);
    void revive();
    Status exchange_put(const std::string& key, const std::string& meta,
                        const std::vector<int>& fds);

    boost::asio::io_context& context_;
    KeeperStart start_;
    std::unique_ptr<SystemdStore> systemd_; // the worker's too; null: berth-keeper
    std::function<void()> on_refill_;
    RunningKeeper keeper_; // the worker's, once start() has returned
    FdWatch watch_;
    ProcessId process_;
    uint64_t restarts_ = 0;
    boost::asio::steady_timer retry_;
    WorkerPool pool_;
};

} // namespace berth
