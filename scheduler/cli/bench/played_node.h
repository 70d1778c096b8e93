// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/reducer.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace berth::cli::bench {

// What a node is asked to hold. Crowded: the instances ask for more than its devices have.
struct NodeShape {
    size_t devices = 16;
    size_t instances = 1000;
    bool crowded = false;
};

// The node's reducer with nothing behind it: loaders, engines and the driver answer every action at
// once and as told, timers fire in virtual time. What each decision costs is kept, by what it was
// about. One thread.
class PlayedNode {
  public:
    // GPUs of 140 GiB, 20 models, a third of the instances online; all of them come at once.
    static Result<std::unique_ptr<PlayedNode>> fill(const NodeShape& shape);
    PlayedNode(const PlayedNode&) = delete;
    PlayedNode& operator=(const PlayedNode&) = delete;

    // The event, and all that follows from it until nobody has anything more to say.
    Status happens(const char* what, node::Event event);
    // Virtual time goes on; what falls due meanwhile happens.
    Status pass(Nanoseconds duration);

    const node::NodeState& state() const { return state_; }
    // Its process ends.
    Status end(const node::InstanceName& name, bool clean);

    using Times = std::map<std::string, std::vector<double>>; // milliseconds, by what it was about
    // Those of the decisions since the last call.
    Times take_times();

  private:
    PlayedNode() = default;
    Status settle();
    void apply(const char* what, const node::Event& event);
    struct Answer;

    node::NodeState state_;
    node::TimePoint now_{std::chrono::hours(1)};
    std::deque<node::Action> to_do_;
    std::map<node::TimerId, node::TimePoint> timers_;
    std::map<node::InstanceName, uint64_t> mapped_; // what each engine holds as its grant
    int next_pid_ = 1;
    Times times_;
};

} // namespace berth::cli::bench
