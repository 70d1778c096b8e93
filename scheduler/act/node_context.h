// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/log.h"
#include "cache/keep/catalogue.h"
#include "cache/keep/systemd_store.h"
#include "cache/memory/nvml.h"
#include "engine_shim/protocol/messages.h"
#include "scheduler/act/decision_loop.h"
#include "scheduler/act/event_log.h"
#include "scheduler/act/gate_pages.h"
#include "scheduler/act/launch.h"
#include "scheduler/act/metrics.h"
#include "scheduler/act/operation_log.h"
#include "scheduler/act/worker_pool.h"
#include "scheduler/node/tiers.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace berth {

// What the parts of the acting side share: one each a daemon, all on the decision thread, made
// before and ended after the parts.
struct NodeContext {
    explicit NodeContext(boost::asio::io_context& io_context)
        : io(io_context), events(io_context), operations(io_context) {}
    NodeContext(const NodeContext&) = delete;
    NodeContext& operator=(const NodeContext&) = delete;

    boost::asio::io_context& io;
    std::string node_name;
    std::string group;
    NodePaths paths;
    std::shared_ptr<const Nvml> nvml; // null where there is no NVIDIA driver
    std::string nvml_absent;          // why
    // What each device's weight sets are made for.
    std::map<node::DeviceId, protocol::Environment> environments;
    std::vector<node::DeviceId> device_order;       // as configured; the first is the default
    std::unique_ptr<SystemdStore> systemd_store;    // null: berth-keeper; the actor takes it
    Catalogue catalogue;                            // of the devices
    Catalogue host_tier;                            // copies below them, which nobody attaches to
    std::map<std::string, std::string> deep_hashes; // by weight set, made when it was loaded
    Catalogue& catalogue_of(std::string_view device) {
        return device == node::kHostTier.value ? host_tier : catalogue;
    }
    std::string zygote_off; // not empty: engines start by exec alone, and why
    // How the process of an instance was started by this berthd; shown, nothing depends on it.
    struct Start {
        node::ProcessRef process;
        std::string why_exec; // empty: forked from the zygote
    };
    std::map<node::InstanceName, Start> starts;
    // CUDA MPS, where the policy asks for it; where it cannot be had, the gates do its work.
    struct Mps {
        bool wanted = false;
        bool ready = false;
        std::string why; // of wanted and not ready
        std::string pipe_directory;
    } mps;
    GatePages gates;
    EventLog events;
    OperationLog operations;
    NodeMetrics metrics;
    std::deque<DecisionRecord> decisions; // the newest kDecisionsMax, oldest first
    static constexpr size_t kDecisionsMax = 200;
    // Keeps what a rollout has come to as the instance's document; set once, as the loop.
    std::function<void(const policies::InstanceSpec&)> adopt_document;
    DecisionLoop* loop = nullptr; // set once, before anything runs

    const node::NodeState& state() const { return loop->state(); }
    void post(node::Event event) const { loop->post(std::move(event)); }
    // An event that no decision stands for.
    void note(bool warning, std::string object, std::string reason, std::string message) {
        if (warning)
            log::warn("event object={} reason={} {}", object, reason, message);
        else
            log::debug("event object={} reason={} {}", object, reason, message);
        loop->record(events.add(warning, std::move(object), std::move(reason), std::move(message)));
    }
};

} // namespace berth
