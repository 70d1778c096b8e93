// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/action.h"
#include "scheduler/node/event.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace berth {

// Starts that were decided and have not come out yet: the tokens that their processes will be known
// by, and which of them wait for CUDA MPS. Thread rule: the decision thread; nothing blocks.
class StartBook {
  public:
    // Makes its tokens, one a rank; those of an earlier start of the instance are void.
    void announce(const node::StartProcess& start);
    // Null: it was not announced, it has come out, or a later start has taken its place.
    const std::vector<std::string>* tokens_of(const node::StartProcess& start) const;
    // Until the node knows of the process, its record says by which token it will be known: whoever
    // finds it after this berthd has died knows it by that alone.
    void complete(node::InstanceRecovered& kept, const node::Instance& instance);
    void forget(const node::InstanceName& instance);

    void wait(const node::StartProcess& start);
    // The one of that instance, if one waited: it does no more.
    std::optional<node::StartProcess> withdraw(const node::InstanceName& instance);
    // All that wait, which they do no more.
    std::vector<node::StartProcess> take_waiting();

  private:
    struct Tokens {
        uint64_t number = 0; // of the start
        std::vector<std::string> by_rank;
    };
    std::map<node::InstanceName, Tokens> tokens_;
    std::map<node::InstanceName, node::StartProcess> waiting_; // on record already
};

// Whether the node still counts with that start of it (StartProcess::number), of which it has not
// heard yet.
bool is_expected(const node::NodeState& state, const node::InstanceName& instance, uint64_t number);
// And still wants it, so that it may begin: between a decision and what comes of it the instance
// may have been preempted, deleted or given up.
bool is_due(const node::NodeState& state, const node::InstanceName& instance, uint64_t number);

} // namespace berth
