// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/reducer.h"
#include "scheduler/store/store.h"

#include <boost/asio/io_context.hpp>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace berth {

// Events in, actions out: the one place where the node's state changes.
//
// Thread rule: the io_context's one thread. post() applies the event at once, unless it is called
// from within an action: then after that. Actions are carried out in the order in which they were
// decided. What one event wants recorded is one transaction; if that holds an intent (a Persist
// action), the event's other actions, and all later ones, wait until it is durable. The store and
// the actor outlive it; flush or destroy the store before it.
class DecisionLoop {
  public:
    class Actor {
      public:
        Actor() = default;
        Actor(const Actor&) = delete;
        Actor& operator=(const Actor&) = delete;
        virtual ~Actor() = default;
        // Before anything of the batch is recorded: choose what its records must already say.
        virtual void announce(const node::Action& action) = 0;
        // What the action wants written down; nothing for most.
        virtual std::optional<StoreWrite> record_of(const node::Action& action) = 0;
        // `recorded` is the failure if its batch could not be written.
        virtual void carry_out(const node::Action& action, const Status& recorded) = 0;
    };

    DecisionLoop(boost::asio::io_context& context, Store& store, Actor& actor);
    DecisionLoop(const DecisionLoop&) = delete;
    DecisionLoop& operator=(const DecisionLoop&) = delete;

    void post(node::Event event);
    // Something to write that no action stands for; not waited for.
    void record(StoreWrite row);

    const node::NodeState& state() const { return state_; }
    // The last failure of the store, if its last batch failed.
    const std::optional<Error>& store_error() const { return store_error_; }
    bool idle() const { return events_.empty() && steps_.empty(); }

  private:
    struct Step {
        std::vector<node::Action> actions;
        Status recorded;
        bool ready = false;
    };
    void run();
    void decide(const node::Event& event);
    void carry_out(Step& step);
    void written(Step* step, Status status);

    boost::asio::io_context& context_;
    Store& store_;
    Actor& actor_;
    node::NodeState state_;
    std::deque<node::Event> events_;
    std::deque<std::unique_ptr<Step>> steps_;
    bool running_ = false;
    std::optional<Error> store_error_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace berth
