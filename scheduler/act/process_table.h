// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/node/types.h"

#include <functional>
#include <map>
#include <string>

namespace berth {

// The engines' processes, by instance: started here or by an earlier berthd. The callback says when
// one has ended; whatever is left of its group is killed then. Dropping the table ends nobody.
// Thread rule: the io_context's one thread; start() takes a fork, about a millisecond.
class ProcessTable {
  public:
    struct Ended {
        node::InstanceName instance;
        node::ProcessRef process;
        bool clean = false;
        std::string description;
    };
    using OnEnded = std::function<void(Ended)>;

    ProcessTable(boost::asio::io_context& context, OnEnded on_ended)
        : context_(context), on_ended_(std::move(on_ended)) {}

    Result<node::ProcessRef> start(const node::InstanceName& instance, const SpawnOptions& options);
    // NotFound when it has ended.
    Status adopt(const node::InstanceName& instance, const node::ProcessRef& process);
    // To the whole group; NotFound when that process is not (or no longer) this instance's.
    Status signal(const node::InstanceName& instance, const node::ProcessRef& process, int number);
    bool has(const node::InstanceName& instance) const { return entries_.contains(instance); }

  private:
    struct Entry {
        Process process;
        FdWatch watch;
        bool own_child = false;
    };
    Result<node::ProcessRef> watch(const node::InstanceName& instance, Process process,
                                   bool own_child);
    void ended(const node::InstanceName& instance, int pid);

    boost::asio::io_context& context_;
    OnEnded on_ended_;
    std::map<node::InstanceName, Entry> entries_;
};

} // namespace berth
