// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/decisions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

namespace berth::cli::bench {

namespace {

using node::Instance;
using node::InstanceState;

constexpr std::chrono::milliseconds kBetween{10};
constexpr double kGoalMs = 1.0;

// What happens on a node in a day, drawn from a seed that is always the same.
class Life {
  public:
    Life(PlayedNode& played, size_t instances) : played_(played), instances_(instances) {}

    Status goes_on(size_t events) {
        for (size_t n = 0; n < events; ++n) {
            BERTH_TRY(one_event());
            BERTH_TRY(played_.pass(kBetween));
        }
        return {};
    }

  private:
    size_t below(size_t bound) { return dice_() % bound; }

    const Instance& any() {
        const node::InstanceName name(fmt::format("i{}", below(instances_)));
        return played_.state().instances.at(name);
    }
    node::OperationId operation() { return node::OperationId(fmt::format("op-{}", ++operations_)); }

    Status one_event() {
        const Instance& i = any();
        // Whoever has ended or gave way comes again soon: the node stays as full as it was.
        const bool is_away =
            i.state == InstanceState::kSucceeded || i.state == InstanceState::kPaused ||
            i.state == InstanceState::kSuspended || i.state == InstanceState::kEvicted ||
            i.state == InstanceState::kFailed;
        if (is_away && below(4) != 0)
            return arrive(i.name);
        const size_t kind = below(20);
        if (kind < 10)
            return report(i);
        if (kind < 11)
            return lease(i);
        if (kind < 12 && i.session)
            return reconnect(i.name);
        if (kind < 13 && i.state == InstanceState::kRunning)
            return played_.end(node::InstanceName(i.name), false);
        if (kind < 15 && i.state == InstanceState::kRunning)
            return played_.end(node::InstanceName(i.name), true);
        if (kind < 17 && i.state == InstanceState::kRunning)
            return give_way(i.name, kind == 15 ? policies::Rung::kPause : policies::Rung::kOffload);
        return i.state == InstanceState::kRunning ? report(i) : arrive(i.name);
    }

    Status arrive(node::InstanceName name) {
        node::OperatorResume event;
        event.operation = operation();
        event.instance = std::move(name);
        return played_.happens("arrival", event);
    }

    // About once a second of each engine; a queue comes and goes.
    Status report(const Instance& i) {
        node::EngineReport event;
        event.instance = i.name;
        event.counters.requests_running = 4;
        event.counters.tokens_done = ++tokens_;
        const bool queues = i.spec.class_name == "online" && below(20) == 0;
        event.counters.requests_waiting = queues ? 9 : 0;
        return played_.happens(queues ? "report of a queue" : "report", event);
    }
    Status lease(const Instance& i) {
        if (i.weights.empty() || i.devices.empty())
            return report(i);
        const node::LeaseId id{++leases_};
        BERTH_TRY(played_.happens(
            "lease",
            node::LeaseOpened{id, i.weights.front(), i.devices.front(), "pid 1 (guest)", {}}));
        return played_.happens("lease", node::LeaseClosed{id});
    }
    Status reconnect(node::InstanceName name) {
        BERTH_TRY(played_.happens("session", node::SessionClosed{name}));
        const Instance& i = played_.state().instances.at(name);
        node::SessionOpened event;
        event.instance = name;
        event.process = i.process;
        event.grant_bytes = i.state == InstanceState::kSuspended ? 0 : i.grant_bytes;
        event.engine_state = node::EngineState::kReady;
        event.held = i.state == InstanceState::kSuspended ? node::EngineHeld::kOffloaded
                     : i.state == InstanceState::kPaused  ? node::EngineHeld::kPaused
                                                          : node::EngineHeld::kNothing;
        return played_.happens("session", event);
    }
    Status give_way(node::InstanceName name, policies::Rung rung) {
        node::OperatorPreempt event;
        event.operation = operation();
        event.instance = std::move(name);
        event.mode = rung;
        return played_.happens("preempt", event);
    }

    PlayedNode& played_;
    size_t instances_;
    std::minstd_rand dice_{1};
    uint64_t operations_ = 0;
    uint64_t leases_ = 0;
    uint64_t tokens_ = 0;
};

json::object states_of(const node::NodeState& state) {
    json::object counted;
    for (const auto& [name, one] : state.instances) {
        json::value& count = counted[node::to_string(one.state)];
        count = (count.is_null() ? 0 : count.get_int64()) + 1;
    }
    return counted;
}

Figure figure_of(const char* name, const PlayedNode::Times& times, const NodeShape& shape,
                 std::string covers) {
    Figure figure{"daemon",
                  name,
                  {},
                  {},
                  "none; the goal is a p99 of 1 ms at most",
                  std::move(covers),
                  {{"devices", shape.devices}, {"instances", shape.instances}}};
    json::object kinds;
    for (const auto& [kind, each] : times) {
        figure.samples.insert(figure.samples.end(), each.begin(), each.end());
        kinds[kind] = json::object{{"decisions", each.size()},
                                   {"p50", percentile(each, 50)},
                                   {"p99", percentile(each, 99)},
                                   {"max", percentile(each, 100)}};
    }
    figure.facts["goalMs"] = kGoalMs;
    figure.facts["kinds"] = std::move(kinds);
    return figure;
}

} // namespace

Result<std::vector<Figure>> decision_figures(const NodeShape& shape, size_t events) {
    BERTH_ASSIGN(std::unique_ptr<PlayedNode> played, PlayedNode::fill(shape));
    const char* many = shape.crowded ? "many wait" : "all run";
    std::vector<Figure> figures;
    figures.push_back(figure_of(shape.crowded ? "decision-crowded-start" : "decision-start",
                                played->take_times(), shape,
                                fmt::format("CPU time of a decision while all instances come at "
                                            "once to empty devices, where {}",
                                            many)));
    figures.back().facts["states"] = states_of(played->state());
    BERTH_TRY(Life(*played, shape.instances).goes_on(events));
    figures.push_back(figure_of(shape.crowded ? "decision-crowded" : "decision",
                                played->take_times(), shape,
                                fmt::format("CPU time of a decision in a node's ordinary life, "
                                            "where {}: reports, queues, leases, connections, "
                                            "ends, deaths, preemptions, arrivals, timers, and "
                                            "what follows from them",
                                            many)));
    figures.back().facts["states"] = states_of(played->state());
    if (auto broken = node::check_invariants(played->state()); !broken.empty())
        return fail(ErrorCode::kInternal,
                    fmt::format("the node's state is not sound after the bench: {}",
                                fmt::join(broken, "; ")),
                    "InvariantBroken");
    return figures;
}

} // namespace berth::cli::bench
