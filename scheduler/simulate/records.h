// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/action.h"
#include "scheduler/node/event.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace berth::simulate {

// What a new berthd reads of an earlier one's records; which processes live it finds out itself.
struct Durable {
    std::map<node::InstanceName, node::InstanceRecovered> instances;
    std::map<node::OperationId, node::Operation> operations; // that are under way
    std::map<std::pair<node::DeviceId, node::WeightSetId>, node::WeightsAdopted> placements;
    std::map<node::DeviceId, std::string> cordons; // and why
    node::Rollouts rollouts;
    uint64_t keeper = 0; // who kept, the last time anybody looked
};

// The records of a simulated node: of instances and weight sets what node::durable() names, of
// which scheduler/act/record_mapping.h makes the real ones. Tests put the real store behind it. One
// thread.
class Records {
  public:
    Records() = default;
    Records(const Records&) = delete;
    Records& operator=(const Records&) = delete;
    virtual ~Records() = default;

    // One transaction: what an event's actions want written down. `tokens`: of processes that are
    // about to be started.
    virtual void write(const std::vector<node::Action>& actions,
                       const std::map<node::InstanceName, std::string>& tokens,
                       node::TimePoint now);
    virtual void keeper_seen(uint64_t keeper) { durable_.keeper = keeper; }
    virtual void forget_weights(const node::WeightSetId& set, const node::DeviceId& device);
    // `wrong` says how it differs from what was written, if it does.
    virtual Durable read(node::TimePoint now, std::string& wrong);

    // Whether an action wants to be written down before those behind it are carried out.
    static bool is_intent(const node::Action& action);

  protected:
    Durable durable_;
};

} // namespace berth::simulate
