// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/process_table.h"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include <csignal>
#include <sys/wait.h>

namespace berth {

Result<node::ProcessRef> ProcessTable::start(const node::InstanceName& instance,
                                             const SpawnOptions& options) {
    BERTH_ASSIGN(Process process, Process::spawn(options));
    return watch(instance, std::move(process), true);
}

Status ProcessTable::adopt(const node::InstanceName& instance, const node::ProcessRef& process) {
    BERTH_ASSIGN(Process adopted, Process::adopt({process.pid, process.start_ticks}));
    BERTH_TRY(watch(instance, std::move(adopted), false));
    return {};
}

Result<node::ProcessRef> ProcessTable::watch(const node::InstanceName& instance, Process process,
                                             bool own_child) {
    node::ProcessRef ref{process.id().pid, process.id().start_ticks};
    Entry entry;
    BERTH_ASSIGN(entry.watch, FdWatch::open(context_, process.pidfd(),
                                            [this, instance, ref] { ended(instance, ref.pid); }));
    entry.process = std::move(process);
    entry.own_child = own_child;
    entries_.insert_or_assign(instance, std::move(entry));
    return ref;
}

void ProcessTable::ended(const node::InstanceName& instance, int pid) {
    auto found = entries_.find(instance);
    if (found == entries_.end() || found->second.process.id().pid != pid)
        return;
    ProcessId id = found->second.process.id();
    // While the leader is not reaped its pid, and so its group's id, cannot be another's.
    if (::getpgid(pid) == pid)
        ::kill(-pid, SIGKILL);
    bool own_child = found->second.own_child;
    int status = found->second.process.try_wait().value_or(0);
    entries_.erase(found);
    Ended said;
    said.instance = instance;
    said.process = {id.pid, id.start_ticks};
    // Of another's child only the end is known; an engine that had finished its work has said so.
    said.clean = own_child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    said.description = own_child ? describe_exit(status) : "ended";
    on_ended_(std::move(said));
}

Status ProcessTable::signal(const node::InstanceName& instance, const node::ProcessRef& process,
                            int number) {
    auto found = entries_.find(instance);
    if (found == entries_.end() || found->second.process.id().pid != process.pid)
        return fail(ErrorCode::kNotFound, fmt::format("process {} is no longer instance '{}'s",
                                                      process.pid, instance.value));
    return found->second.process.signal_group(number);
}

} // namespace berth
