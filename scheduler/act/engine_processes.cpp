// SPDX-License-Identifier: Apache-2.0
// The actor's part that deals with engines' processes once they are there: what becomes of them,
// signals, and what the system says of them. All of it is of each rank.
#include "scheduler/act/node_actor.h"

#include "base/log.h"
#include "scheduler/act/confirm.h"
#include "scheduler/act/rank_name.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace berth {

ProcessTable::Observer NodeActor::process_observer() {
    ProcessTable::Observer observer;
    observer.ended = [this](ProcessTable::Ended ended) {
        node::ProcessExited event;
        event.instance = ended.instance;
        event.process = ended.process;
        event.clean = ended.clean;
        event.description = ended.description;
        event.log_path = context_.paths.engine_log(ended.instance);
        crews_.hear(ended.instance, std::move(event));
    };
    observer.leader_ended = [this](ProcessTable::Ended ended, std::string left) {
        crews_.hear(ended.instance, node::LeaderExited{ended.instance, ended.process,
                                                       ended.description, std::move(left)});
    };
    observer.moved = [this](const node::InstanceName& instance, const node::ProcessRef& process,
                            bool stopped) {
        if (stopped)
            crews_.hear(instance, node::ProcessStopped{instance, process});
        else
            crews_.hear(instance, node::ProcessContinued{instance, process});
    };
    observer.kill_refused = [this](const node::InstanceName& instance,
                                   const node::ProcessRef& process, std::string why) {
        crews_.hear(instance, node::KillRefused{instance, process, std::move(why)});
    };
    observer.care = [this](const node::InstanceName& instance) { return care_of(instance); };
    return observer;
}

ProcessTable::Care NodeActor::care_of(const node::InstanceName& rank_name) const {
    ProcessTable::Care care;
    const RankOf of = rank_of(rank_name);
    const auto& instances = context_.state().instances;
    const auto found = instances.find(of.instance);
    if (found == instances.end())
        return care;
    const node::Instance& i = found->second;
    const node::RankProcess own = i.rank_process(of.rank);
    care.token_sha256 = own.token_sha256;
    const auto& environment = i.spec.engine.environment;
    if (auto its = environment.find("CUDA_MPS_PIPE_DIRECTORY"); its != environment.end())
        care.mps_pipe_directory = its->second;
    if (context_.mps.ready)
        care.mps_unread = context_.mps.pipe_directory;
    for (size_t n = 0; n < i.devices.size(); ++n)
        if (auto known = context_.environments.find(i.devices[n]);
            (i.ranks == 1 || n == of.rank) && known != context_.environments.end() &&
            known->second.device_kind == "cuda")
            care.gpus.push_back(i.devices[n].value);
    care.no_mps = care.gpus.empty() && care.mps_pipe_directory.empty() && !i.devices.empty();
    if (!care.gpus.empty())
        care.nvml = context_.nvml;
    return care;
}

void NodeActor::signal_rank(const node::InstanceName& rank_name, const node::ProcessRef& process,
                            int number) {
    if (auto sent = processes_.signal(rank_name, process, number); !sent)
        log::info("signal {} to instance={} pid={}: {}, ignoring", number, rank_name.value,
                  process.pid, sent.error().message);
}

// To all ranks.
void NodeActor::signal(const node::InstanceName& instance, const node::ProcessRef& process,
                       int number) {
    Crew* crew = crews_.find(instance);
    if (crew == nullptr || !(crew->process(0) == process))
        return signal_rank(instance, process, number);
    if (number == SIGTERM || number == SIGKILL)
        crew->end_asked();
    std::vector<node::ProcessRef> processes;
    for (uint32_t rank = 0; rank < crew->size(); ++rank)
        processes.push_back(crew->process(rank));
    for (uint32_t rank = 0; rank < processes.size(); ++rank)
        signal_rank(rank_name(instance, rank), processes[rank], number);
}

void NodeActor::inspect(const node::InspectProcess& asked) {
    std::vector<TreeQuery> queries;
    const auto& instances = context_.state().instances;
    const auto found = instances.find(asked.instance);
    const uint32_t ranks = found == instances.end() ? 1 : found->second.ranks;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        const node::ProcessRef process =
            rank == 0 ? asked.process : found->second.rank_process(rank).process;
        queries.push_back({{process.pid, process.start_ticks},
                           true,
                           {},
                           care_of(rank_name(asked.instance, rank)).token_sha256});
    }
    workers_.processes.run(
        [queries = std::move(queries)] {
            std::vector<int> pids;
            for (const TreeQuery& query : queries)
                for (const TreeMember& one : find_tree(query))
                    pids.push_back(one.id.pid);
            return waits_in(pids);
        },
        [this, asked](std::string words) {
            context_.post(node::ProcessInspected{asked.instance, asked.process, std::move(words)});
        });
}

// Of several ranks what the one has that has most: their grants are equal.
void NodeActor::confirm_bytes(const node::ConfirmBytes& confirm) {
    std::vector<ConfirmRequest> requests;
    const auto ask = [&](const node::ProcessRef& process, const node::DeviceId& device,
                         uint64_t overhead_bytes) {
        ConfirmRequest& request = requests.emplace_back();
        request.process = process;
        const auto known = context_.environments.find(device);
        if (known == context_.environments.end() || known->second.device_kind != "cuda")
            return;
        request.nvml = context_.nvml;
        request.gpu = device.value;
        request.overhead_bytes = overhead_bytes;
    };
    const auto& instances = context_.state().instances;
    const auto found = instances.find(confirm.instance);
    ask(confirm.process, confirm.device,
        found == instances.end() ? 0 : found->second.overhead_bytes);
    if (found != instances.end())
        for (size_t n = 0; n < found->second.others.size(); ++n)
            ask(found->second.others[n].process, found->second.devices.at(n + 1),
                found->second.overhead_bytes);
    workers_.memory.run(
        [requests = std::move(requests)]() -> std::optional<uint64_t> {
            uint64_t most = 0;
            for (const ConfirmRequest& request : requests) {
                const std::optional<uint64_t> bytes = confirm_grant(request);
                if (!bytes)
                    return std::nullopt;
                most = std::max(most, *bytes);
            }
            return most;
        },
        [this, name = confirm.instance, process = confirm.process](std::optional<uint64_t> bytes) {
            node::BytesConfirmed event;
            event.instance = name;
            event.process = process;
            event.grant_bytes = bytes;
            context_.post(std::move(event));
        });
}

} // namespace berth
