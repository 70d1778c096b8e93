// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "cache/memory/nvml.h"
#include "scheduler/act/alarm.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/process_tree.h"
#include "scheduler/act/worker_pool.h"
#include "scheduler/node/types.h"

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
// through /proc is done on a thread of its own; asking the driver and MPS, either of which may
// hang, on others, so that only those wait for it whose end depends on it.
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
        bool no_mps = false; // it has no GPU: its processes are nobody's MPS clients
        // Else each one's environment says whose, as it was when it was started.
        std::string mps_pipe_directory; // all of them, by its document
        std::string mps_unread;         // of one whose environment cannot be read; empty: nobody's
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

    // What may hang; for tests: others.
    struct Askers {
        // See release_mps_clients().
        std::function<Status(const std::string& pipe_directory, const std::vector<int>& pids)>
            release_mps;
        // What the driver still counts for these, which have ended; empty: nothing.
        std::function<std::string(const Care&, const std::vector<ProcessId>&)> held_on_gpus;
        static Askers real();
    };

    ProcessTable(boost::asio::io_context& context, Observer observer,
                 Askers askers = Askers::real())
        : context_(context), observer_(std::move(observer)), askers_(std::move(askers)),
          looker_(context, 1), mps_(context, kAskers), driver_(context, kAskers) {}
    ~ProcessTable() { stop(); }
    // Waits for a look that is under way; nothing is reported afterwards.
    void stop();

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
        Alarm again;
    };
    // What is found by a look, on the looking thread.
    struct Look {
        std::vector<TreeMember> members;
        std::map<std::string, std::vector<ProcessId>> clients; // MPS's among them, by pipes
        bool still = false;
        std::string refused; // why they may not be killed, or could not be looked at
        std::string held;    // what the driver still counts
        static Look of_failure(Error error);
    };
    static constexpr size_t kAskers = 2;
    Result<node::ProcessRef> watch(const node::InstanceName& instance, Process process,
                                   bool own_child);
    Entry* find(const node::InstanceName& instance, const node::ProcessRef& process);
    TreeQuery query_of(const Entry& entry, const Care& care) const;
    void move(const node::InstanceName& instance, Entry& entry, int number);
    void kill(const node::InstanceName& instance, Entry& entry);
    static Look look_and_end(const TreeQuery& query, const Care& care);
    void end_clients(Look look, std::function<void(Look)> then);
    void ask_driver(Look look, const Care& care, std::vector<ProcessId> all,
                    std::function<void(Look)> then);
    void leader_ended(const node::InstanceName& instance, int pid);
    void sweep(const node::InstanceName& instance, Entry& entry);
    void swept(const node::InstanceName& instance, Entry& entry, Look look);
    void later(Entry& entry, std::function<void()> then);
    Ended ended_of(const node::InstanceName& instance, const Entry& entry) const;

    boost::asio::io_context& context_;
    Observer observer_;
    Askers askers_;
    std::map<node::InstanceName, Entry> entries_;
    // Ended before the entries, to which their results refer.
    WorkerPool looker_;
    WorkerPool mps_;
    WorkerPool driver_;
};

} // namespace berth
