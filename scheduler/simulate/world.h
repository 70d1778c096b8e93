// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/judge.h"
#include "scheduler/simulate/stimulus.h"

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace berth::simulate {

// A run to be made. With a seed alone all of it is drawn; the rest is how a run is told that was
// made small.
struct Plan {
    uint64_t seed = 1;
    uint64_t events = 300;                       // until faults cease
    std::set<std::string> without;               // instances that are left out
    std::set<std::string> withheld;              // faults that do not happen
    std::optional<std::vector<Stimulus>> script; // instead of what would be drawn
    std::optional<Nanoseconds> calm_at;          // when faults cease, instead of after `events`
    bool keeps_log = false;
    ShapeLimits limits;
};

struct Outcome {
    std::optional<Finding> found;
    Nanoseconds found_at{0};
    uint64_t events = 0; // that the reducer has seen
    uint64_t lives = 0;  // of berthd
    std::vector<Stimulus> script;
    std::set<std::string> faults; // that happened
    Nanoseconds calm_at{0};
    std::deque<std::string> log;
    std::set<std::string> reached; // what a run has seen: reasons, commands, loads, copies
};

// One simulated node: devices, engines, loaders, berthd, operators and a judge, from a seed. First
// things go wrong; then faults cease and all must settle; then all is removed and no byte may be
// left. The first finding ends it.
class World {
  public:
    explicit World(const Plan& plan, std::unique_ptr<Records> records = nullptr);
    Outcome run();
    const Shape& shape() const { return shape_; }

  private:
    void reach(const node::Action& action);
    void storm();
    void settle(Nanoseconds time);
    void remove_all();
    void next_deed();
    std::optional<Stimulus> next_stimulus();
    void happen(const Stimulus& stimulus);
    bool operators_do(const Stimulus& stimulus);
    void programs_do(const Stimulus& stimulus);
    void node_suffers(const Stimulus& stimulus);
    void change_documents(const Stimulus& stimulus);
    void roll_out(const Stimulus& stimulus);
    void late_word(const Stimulus& stimulus);
    void late_drop(const node::WeightSetId& id, bool failed);
    void tell_time();
    node::OperationId ask(const Stimulus& stimulus);
    node::WeightSetId set_of(const std::string& model) const;
    bool is_over() const { return stage_.found.has_value(); }

    const Plan plan_;
    const Shape shape_;
    Stage stage_;
    std::unique_ptr<Records> records_;
    Judge judge_;
    Daemon daemon_;
    WeightMemory memory_;
    Engines engines_;
    Loaders loaders_;
    Guests guests_;
    Outcome outcome_;
    size_t next_ = 0;         // of the script, or the next draw
    Nanoseconds drawn_at_{0}; // of the last draw
    std::optional<Stimulus> waiting_;
    node::TimePoint began_;
};

// A run of that plan, on records in memory.
Outcome simulate(const Plan& plan);

} // namespace berth::simulate
