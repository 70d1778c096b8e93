// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/action.h"
#include "scheduler/node/state.h"
#include "scheduler/node/step_words.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

// Inside scheduler/node/ only: what every topic of a step uses. Actions are collected in order, and
// a record of what has changed goes before each action that changes the world outside.
namespace berth::node {

class StepBase {
  protected:
    StepBase(NodeState& state, TimePoint now) : s_(state), now_(now) {}

    void act(Action action); // records what has changed first, then appends
    void flush();            // PersistInstance for what has changed
    void enter(Instance& i, InstanceState state, std::string substate = {}, std::string reason = {},
               std::string message = {});
    void dirty(const Instance& i) { dirty_.insert(i.name); }
    Instance* find(const InstanceName& name);
    void tell(const Instance& i, bool warning, std::string reason, std::string message);
    uint64_t next_id() { return s_.next_id++; }
    void arm(std::optional<TimerId>& slot, Timer timer, TimePoint at);
    void cancel(std::optional<TimerId>& slot);
    bool is_timed(const Instance& i) const; // its rung has a deadline
    void cancel_timers(Instance& i);        // of what is under way; a Serve is owed all the same
    void send(Instance& i, CommandKind kind, uint64_t grant_bytes = 0);
    // On record, and under way from now on; on its instance, if it names one.
    void begin_operation(Operation& operation);
    void supersede(const OperationId& id, const OperationId& by);
    void finish_operation(const OperationId& id, std::optional<Error> error, std::string message,
                          uint64_t bytes_freed = 0);
    void refuse_operation(Operation operation, Error error);
    void answer_operation(Operation operation, std::string message);
    void operation_phase(Instance& i, const std::string& name);

    NodeState& s_;
    TimePoint now_;
    std::vector<Action> actions_;
    std::set<InstanceName> dirty_;
};

} // namespace berth::node
