// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "cache/memory/nvml.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/process_tree.h"
#include "scheduler/act/worker_pool.h"
#include "scheduler/node/types.h"

#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace berth {

// The engines' processes, by instance: started here or by an earlier berthd. An instance is its
// whole tree (see process_tree.h): signals go to all of it, and it has ended when the last one has
// and the driver counts nothing for any of them; what outlives its leader is killed. Dropping the
// table ends nobody.
// Thread rule: the io_context's one thread; start() takes a fork, about a millisecond. Looking
// through /proc, asking the driver and MPS are done on a thread of its own.
class ProcessTable {
  public:
    struct Ended {
        node::InstanceName instance;
        node::ProcessRef process;
        bool clean = false;
        std::string description;
    };
    // What the table cannot know of an instance by itself.
    struct Care {
        std::string token_sha256;
        std::string mps_pipe_directory; // empty: its processes are nobody's MPS clients
        std::shared_ptr<const Nvml> nvml;
        std::vector<std::string> gpus; // that it has memory on
    };
    struct Observer {
        std::function<void(Ended)> ended;
        // Its leader has ended, these have not.
        std::function<void(Ended, std::string left)> leader_ended;
        // After SIGSTOP and SIGCONT: all of it stands still, or goes on.
        std::function<void(const node::InstanceName&, const node::ProcessRef&, bool stopped)> moved;
        std::function<void(const node::InstanceName&, const node::ProcessRef&, std::string why)>
            kill_refused;
        std::function<Care(const node::InstanceName&)> care;
    };

    ProcessTable(boost::asio::io_context& context, Observer observer)
        : context_(context), observer_(std::move(observer)), looker_(context, 1) {}
    ~ProcessTable() { stop(); }
    // Waits for a look that is under way; nothing is reported afterwards.
    void stop() { looker_.stop(); }

    Result<node::ProcessRef> start(const node::InstanceName& instance, const SpawnOptions& options);
    // A child that was made otherwise.
    Result<node::ProcessRef> take(const node::InstanceName& instance, Process process) {
        return watch(instance, std::move(process), true);
    }
    // NotFound when it has ended.
    Status adopt(const node::InstanceName& instance, const node::ProcessRef& process);
    // The leader has ended while no berthd was there; whoever has its token is ended now. NotFound
    // when there is nobody. Looks through /proc, so only before the io_context runs.
    Status adopt_rest(const node::InstanceName& instance, const node::ProcessRef& process,
                      const std::string& token_sha256);
    // To the whole tree; NotFound when that process is not (or no longer) this instance's. SIGTERM
    // goes to its group alone, which knows its own, and lets go on what is stopped.
    Status signal(const node::InstanceName& instance, const node::ProcessRef& process, int number);
    bool has(const node::InstanceName& instance) const { return entries_.contains(instance); }

  private:
    struct Entry {
        node::ProcessRef ref;
        Process process; // not reaped before all have ended: its number stays its own
        FdWatch watch;
        bool own_child = false;
        bool recovered_rest = false;  // see adopt_rest
        std::vector<ProcessId> known; // of its tree
        uint64_t asked = 0;           // counts signals: a look for an earlier one is void
        uint64_t looks = 0;           // for the last one
        bool leader_ended = false;
        bool told = false;
        int status = 0;
        std::chrono::steady_clock::time_point ended_at;
        std::chrono::milliseconds pause{0}; // until the next look
        std::unique_ptr<boost::asio::steady_timer> again;
    };
    // What is found by a look, on the looking thread.
    struct Look {
        std::vector<TreeMember> members;
        bool still = false;
        std::string refused; // why they may not be killed
        std::string held;    // what the driver still counts
    };
    Result<node::ProcessRef> watch(const node::InstanceName& instance, Process process,
                                   bool own_child);
    Entry* find(const node::InstanceName& instance, const node::ProcessRef& process);
    TreeQuery query_of(const Entry& entry, const Care& care) const;
    void move(const node::InstanceName& instance, Entry& entry, int number);
    void kill(const node::InstanceName& instance, Entry& entry);
    void leader_ended(const node::InstanceName& instance, int pid);
    void sweep(const node::InstanceName& instance, Entry& entry);
    void swept(const node::InstanceName& instance, Entry& entry, Look look);
    void later(Entry& entry, std::function<void()> then);
    Ended ended_of(const node::InstanceName& instance, const Entry& entry) const;

    boost::asio::io_context& context_;
    Observer observer_;
    std::map<node::InstanceName, Entry> entries_;
    WorkerPool looker_; // before the entries: its results refer to them
};

} // namespace berth
