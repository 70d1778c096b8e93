// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/held_events.h"
#include "scheduler/node/reducer.h"
#include "scheduler/store/store.h"

#include <boost/asio/io_context.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace berth {

// Events in, actions out: the one place where the node's state changes.
//
// Thread rule: the io_context's one thread. post() applies the event at once, unless it is called
// from within an action: then after that. Actions are carried out in the order in which they were
// decided; those of many events take several turns of the io_context, each of kTurnMax and what the
// last of them takes, so that nothing else that is ready waits for all of them. What one event
// wants recorded is one transaction; if that holds an intent (a Persist action), or announces
// something that reaches outside, the event's other actions, and all later ones, wait until it is
// written.
//
// While the store is in trouble nothing is decided: events are held, and the node's clock stands
// still, so that no deadline passes which nobody could have met. What is needed to find everything
// again (what comes before the first documents) is taken all the same. When the store is well
// again, all goes on from where it stood.
//
// The store and the actor outlive it; flush or destroy the store before it.
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

    static constexpr std::chrono::microseconds kTurnMax{1000};

    DecisionLoop(boost::asio::io_context& context, Store& store, Actor& actor);
    DecisionLoop(const DecisionLoop&) = delete;
    DecisionLoop& operator=(const DecisionLoop&) = delete;

    void post(node::Event event);
    // Something to write that no action stands for; not waited for.
    void record(StoreWrite row);

    const node::NodeState& state() const { return state_; }
    // Why nothing can be written now, or why the last batch was refused.
    const std::optional<Error>& store_error() const { return trouble_ ? trouble_ : refused_; }
    // Only the former: what is asked for now could not be recorded, and is refused in these words.
    const std::optional<Error>& store_trouble() const { return trouble_; }
    // Hears each change of the store, after the loop has; once, before the io_context runs.
    void on_store(std::function<void(const StoreReport&)> heard) { on_store_ = std::move(heard); }
    size_t events_held() const { return held_.size(); }
    bool idle() const { return events_.empty() && steps_.empty() && held_.size() == 0; }

  private:
    struct Step {
        std::vector<node::Action> actions;
        node::TimePoint decided_at;
        Status recorded;
        bool ready = false;
    };
    void run();
    void run_later();
    bool hold(node::Event& event);
    void decide(const node::Event& event);
    void carry_out(Step& step);
    void written(Step* step, Status status);
    void store_changed(const StoreReport& report);
    void go_on();

    boost::asio::io_context& context_;
    Store& store_;
    Actor& actor_;
    node::NodeState state_;
    std::deque<node::Event> events_;
    std::deque<std::unique_ptr<Step>> steps_;
    bool running_ = false;
    bool turn_posted_ = false;
    std::optional<Error> refused_;

    std::optional<Error> trouble_;
    node::TimePoint trouble_since_;
    HeldEvents held_;
    std::vector<std::pair<node::TimerId, node::TimePoint>> fired_; // while the clock stood
    std::function<void(const StoreReport&)> on_store_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace berth
