// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/engines.h"
#include "scheduler/simulate/guests.h"
#include "scheduler/simulate/loaders.h"
#include "scheduler/simulate/records.h"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace berth::simulate {

// The simulated berthd: the real reducer behind a decision loop that does what
// scheduler/act/decision_loop.h does (an event's records are one transaction, its actions and all
// later ones wait for it), with a disk that is slow, full, or refuses, and with a death between any
// two writes and any two actions. A new one finds its state from the records and the facts. One
// thread; all that it is given outlives it.
class Daemon : public Ear {
  public:
    // Sees each event once it has been applied, with its actions.
    using Observer =
        std::function<void(const node::Event& event, const std::vector<node::Action>& actions)>;

    Daemon(Stage& stage, const Shape& shape, Records& records, Observer observer);
    void use(Engines& engines, Loaders& loaders, Guests& guests, WeightMemory& memory);

    void post(node::Event event) override;
    const node::NodeState* state() const override { return up_ ? &state_ : nullptr; }

    void start(); // first, or again
    void kill();  // as SIGKILL does; start() follows by itself after the downtime
    // At the n-th write or action from now, alone or together with the keeper.
    void kill_in(uint64_t points, Nanoseconds downtime, bool keeper_too = false);
    void apply(policies::Documents documents); // recorded, then told
    void tell_wall_clock();
    void disk_fills_up(Nanoseconds duration);

    bool up() const { return up_; }
    uint64_t events() const { return events_; }
    uint64_t lives() const { return lives_; }
    const policies::Documents& documents() const { return documents_; }
    bool is_armed(node::TimerId id) const { return timers_.contains(id); }
    bool has_work() const { return !steps_.empty() || !up_; }
    void die_no_more() { points_left_.reset(); }
    std::function<void()> on_start;                        // after each recovery
    std::function<void(const node::Operation&)> on_answer; // a caller is told

  private:
    struct Step {
        std::vector<node::Action> actions;
        std::map<node::InstanceName, std::string> tokens; // that its records must name
        bool recorded = true;
        bool ready = false;
        bool intent = false;
    };
    void run();
    void decide(const node::Event& event);
    void write(Step& step);
    void carry_out(const node::Action& action, bool recorded);
    bool dies_here(); // a point where it may be killed
    void recover();
    void adopt_lost(const Durable& durable);
    void adopt_lost(const Durable& durable, const WeightMemory::Place& place,
                    const node::WeightsAdopted& record);
    void write_later(std::function<void()> record);
    void adopt_document(const policies::InstanceSpec& spec);
    void start_process(const node::StartProcess& start, bool recorded);

    struct ByKind;

    Stage& stage_;
    const Shape& shape_;
    Records& records_;
    Observer observer_;
    Engines* engines_ = nullptr;
    Loaders* loaders_ = nullptr;
    Guests* guests_ = nullptr;
    WeightMemory* memory_ = nullptr;
    policies::Documents documents_;
    node::NodeState state_;
    std::deque<node::Event> queue_;
    std::deque<std::shared_ptr<Step>> steps_;
    std::map<node::TimerId, node::TimePoint> timers_;
    std::map<node::InstanceName, std::string> tokens_; // of processes about to be started
    bool up_ = false, running_ = false, dead_ = false, keeper_too_ = false, keeper_is_new_ = false;
    uint64_t lives_ = 0, events_ = 0, writes_ = 0, tokens_made_ = 0, adoptions_ = 0;
    std::optional<uint64_t> points_left_;
    Nanoseconds downtime_{0};
    node::TimePoint disk_full_until_;
    node::TimePoint writer_free_at_;
    std::vector<WeightMemory::Place> forgotten_; // while it starts
};

} // namespace berth::simulate
