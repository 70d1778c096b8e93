// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/alarm.h"
#include "scheduler/act/crew.h"
#include "scheduler/act/node_context.h"
#include "scheduler/act/rank_name.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace berth {

// The crews of all instances that have several ranks, between those who see processes and sessions
// and the node. What happens to an instance of one rank goes through untouched. Each start of a
// crew has a folder of its own in which its ranks find each other; it goes with the last of them.
// Thread rule: the decision thread. The context outlives it.
class CrewBook {
  public:
    // SIGKILL to the process that is known by that name.
    using End = std::function<void(const node::InstanceName& rank_name, const node::ProcessRef&)>;
    // Closes the connection of the rank that is known by that name, which connects again.
    using Renew = std::function<void(const node::InstanceName& rank_name)>;
    CrewBook(NodeContext& context, End end, Renew renew)
        : context_(context), end_(std::move(end)), renew_(std::move(renew)) {}
    CrewBook(const CrewBook&) = delete;
    CrewBook& operator=(const CrewBook&) = delete;
    void stop() { alarms_.clear(); }

    // `rank_name` says whom it happened to; the event names whatever instance.
    void hear(const node::InstanceName& rank_name, node::Event event);
    // Null: it has one rank, or no process.
    Crew* find(const node::InstanceName& instance) const;

    // Of one that is about to be started: where its ranks meet.
    Result<std::string> begin(const node::StartProcess& start,
                              const std::vector<std::string>& token_hashes);
    // One that an earlier berthd has started.
    Crew& adopt(const node::InstanceName& instance, const std::string& token_sha256,
                const node::ProcessRef& process, const std::vector<node::RankProcess>& others,
                uint64_t number, const std::vector<uint32_t>& gone);
    // At start, when all were adopted: meeting places of nobody.
    void tidy() const;

  private:
    struct Entry {
        std::shared_ptr<Crew> crew;
        std::string folder;
    };
    Crew::Hands hands_of(const node::InstanceName& instance);
    void later(std::weak_ptr<Crew> crew, Nanoseconds delay, std::function<void()> deed);
    void over(const node::InstanceName& instance);
    std::string folder_of(const node::InstanceName& instance, uint64_t number) const;

    NodeContext& context_;
    End end_;
    Renew renew_;
    std::map<node::InstanceName, Entry> crews_;
    std::map<uint64_t, Alarm> alarms_;
    uint64_t next_alarm_ = 0;
};

} // namespace berth
