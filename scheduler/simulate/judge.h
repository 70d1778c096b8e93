// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/daemon.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace berth::simulate {

// What must hold (docs/architecture.md), looked at after every event from outside: by the devices'
// own account, the processes, the files and what callers were told, beside the node's own
// check_invariants. Reports to the stage. One thread; all that it is given outlives it.
class Judge {
  public:
    Judge(Stage& stage, const Shape& shape);
    void use(const Daemon& daemon, const Engines& engines, const Loaders& loaders);

    void after_event(const node::Event& event, const std::vector<node::Action>& actions);
    void answered(const node::Operation& done); // its caller is told
    void after_start();                         // of a new berthd that has found its state
    // When faults have ceased and all has had its time.
    void when_settled();
    // When every document is gone and every set evicted.
    void when_empty();

    void asked(const node::OperationId& id) { asked_.insert(id); }

  private:
    struct Seen { // of an instance, before the event
        node::InstanceState state = node::InstanceState::kPending;
        std::vector<node::TimePoint> disruptions;
    };
    struct SeenRollout { // the same
        uint64_t number = 0;
        node::RolloutPhase phase = node::RolloutPhase::kStarting;
        node::ProcessRef serving; // for its instance, by the engines' own word
    };
    const node::NodeState& state() const { return *daemon_->state(); }
    void check_memory();
    void check_promises(const node::Event& event, const std::vector<node::Action>& actions);
    void check_start(const node::StartProcess& start);
    void check_ranks(const node::StartProcess& start, const node::Instance& i);
    void check_command(const node::SendCommand& command);
    void check_facts(const node::Operation& done);
    void check_decision(const node::Decision& decision);
    void check_disruptions(const std::vector<node::Action>& actions);
    void check_jobs();
    void check_forgotten(const node::ForgetRequests& forget);
    // judge_rollouts.cpp
    node::ProcessRef who_serves(const std::string& service) const;
    void check_rollouts(const std::vector<node::Action>& actions);
    void check_unharmed(const node::Rollout& r, const node::ProcessRef& serving,
                        const std::vector<node::Action>& actions);
    void check_served(const node::Rollout& r);
    void remember_rollouts();
    void check_rollouts_settled();
    void remember();
    bool is_urgent(const std::string& object) const;
    void check_waiting(const node::Instance& i);
    void check_answered(const node::Instance& i);
    bool is_excused(const node::Instance& i) const;
    uint64_t need(const node::Instance& i, const node::DeviceId& device) const;
    uint64_t others_need(const node::Instance& i, const node::DeviceId& device) const;
    uint64_t victims_give(const node::Instance& i, const node::DeviceId& device) const;
    bool is_cordoned(const node::DeviceId& device) const;

    Stage& stage_;
    const Shape& shape_;
    const Daemon* daemon_ = nullptr;
    const Engines* engines_ = nullptr;
    const Loaders* loaders_ = nullptr;
    std::map<node::InstanceName, Seen> seen_;
    std::map<node::InstanceName, SeenRollout> rollouts_;
    std::set<node::OperationId> asked_, done_;
    std::map<node::InstanceName, bool> holds_;      // that callers were told are in force
    std::map<node::DeviceId, bool> cordons_;        // the same
    std::map<std::string, uint64_t> changes_;       // of an object's hold or cordon
    std::map<node::OperationId, uint64_t> decided_; // how many there had been by then
    std::map<node::InstanceName, uint64_t> lines_;  // of jobs
};

} // namespace berth::simulate
