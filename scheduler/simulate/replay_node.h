// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/daemon.h"
#include "scheduler/simulate/replay.h"

#include <deque>
#include <set>

namespace berth::simulate {

// One playing of an arrival trace against a node without faults: requests go round the online
// instances, each of which has a simple service model; batch engines work while no gate is closed
// for them. One thread.
class ReplayNode {
  public:
    ReplayNode(Shape shape, const ServiceModel& model);
    // Milliseconds to the first token of each arrival; below zero: never served.
    std::vector<double> play(const std::vector<Arrival>& arrivals);
    void fill(ReplayReport& report) const;
    static Shape shape_of(const policies::Documents& documents, const ServiceModel& model);
    static bool is_online(const policies::Documents& documents,
                          const policies::InstanceSpec& instance);

  private:
    struct Request {
        size_t number = 0;
        node::TimePoint arrived;
        Arrival asks;
    };
    struct Server { // an online instance
        node::InstanceName name;
        std::deque<Request> queue;
        uint64_t in_flight = 0;
        uint64_t tokens = 0; // of those in flight
        bool prefills = false, reports = false;
        std::vector<double> recent_ms;
    };
    void observe(const std::vector<node::Action>& actions);
    void arrive(size_t number, const Arrival& arrival);
    void pump(Server& server);
    void pump_all();
    void report(Server& server);
    void account(); // of the batch hours up to now, then what holds from now on
    bool serves(const Server& server) const;
    double slowness(const node::DeviceId& device) const;
    bool is_gated(const node::DeviceId& device) const;
    const node::Instance* find(const node::InstanceName& name) const;

    const Shape shape_;
    const ServiceModel model_;
    Stage stage_{1};
    Records records_;
    Daemon daemon_;
    WeightMemory memory_;
    Engines engines_;
    Loaders loaders_;
    Guests guests_;
    std::vector<Server> servers_;
    std::vector<double> ttft_ms_;
    size_t next_server_ = 0, open_ = 0;            // arrivals that have no first token yet
    std::map<node::InstanceName, double> working_; // batch, and the share of it that is at work
    std::map<node::InstanceName, double> hours_;
    std::set<node::DeviceId> gated_;
    std::map<std::string, uint64_t> preemptions_;
    std::map<node::InstanceName, node::InstanceState> states_;
    std::map<node::InstanceName, std::pair<node::TimePoint, ReplayReport::Wait>> waits_;
    uint64_t gate_closings_ = 0;
    node::TimePoint accounted_, began_;
};

} // namespace berth::simulate
