// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/cron.h"
#include "scheduler/node/instance.h"
#include "scheduler/node/resources.h"
#include "scheduler/node/rollout.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

// The node's state: plain values, copyable (a plan is a copy to which events are applied). Only
// apply() changes it; everybody else reads it, on the decision thread.
namespace berth::node {

enum class OperationKind {
    kPreempt,
    kResume,
    kLoad,
    kEvictWeights,
    kPin,
    kUnpin,
    kHold,
    kRelease,
    kDrain,
    kCordon,
    kUncordon,
    kDrainDevice,
    kPromote,
    kRollout,
    kRolloutPause,
    kRolloutResume,
    kRolloutUndo,
};
enum class OperationState { kRunning, kSucceeded, kFailed };
struct Operation {
    OperationId id;
    OperationKind kind = OperationKind::kPreempt;
    InstanceName instance;
    std::string object; // what it acts on, for people: "instance/nightly", "weights/0123..."
    policies::Rung mode = policies::Rung::kPause;
    policies::Rung reached = policies::Rung::kPause; // after escalation
    std::string cause;                               // the caller's reason
    bool dry_run = false;
    bool drop = false; // of an evict: the copies below too
    OperationState state = OperationState::kRunning;
    std::string message; // what was done, or would be
    std::optional<Error> error;
    uint64_t bytes_freed = 0;
    uint64_t bytes_saved = 0; // KV that was copied to host memory for it
    uint64_t bytes_moved = 0; // and within the grant
    Phases phases;
    TimePoint started_at;
    TimePoint phase_started;
};

struct Timer {
    enum class Kind {
        kRung,      // a preemption or resume deadline
        kStart,     // Starting takes too long
        kBackOff,   // try to start again
        kConfirm,   // ask the driver's figure again
        kKilled,    // a killed process has not ended
        kReconnect, // a recovered engine has not come back
        kLoadStall, // a loader has made no progress
        kTiers,     // a copy, or a drop, is to be tried again
        kPlan,      // something that the planner waits for is due
        kGrow,      // a Grow is not answered
        kServe,     // a Serve is not answered, or to be tried again
        kLook,      // whether an engine with a socket is still heard
        kRollout,   // what a rollout has come to is to be kept, once more
    } kind = Kind::kRung;
    InstanceName instance;
    LoadId load{};
};

// Wall-clock time, as it was last told: cron windows follow it. Steady time goes on from there.
struct WallClock {
    bool known = false;
    int64_t unix_seconds = 0;
    int64_t utc_offset_seconds = 0; // local time less UTC
    TimePoint at;                   // when it was told
};

// A class's demand, from its triggers (demand.cpp).
struct Demand {
    std::map<DeviceId, TimePoint> queue_since; // above the threshold since
    std::map<DeviceId, std::string> words;     // where it is demanded now, and why
    std::map<DeviceId, TimePoint> ended_at;    // where it was demanded last
};

// A socket that outlives the processes that answer it, beside what the documents say.
struct ServiceRecord {
    uint32_t quick_ends = 0; // in a row, all but the first soon after it had begun to answer
    bool in_flight = true;   // requests may be kept for a next process
    bool journal = false;    // there may be one
};

struct NodeState {
    policies::Documents documents;
    policies::PolicySpec policy;
    bool ready = false;    // DocumentsApplied has come; nothing is decided before
    bool stopping = false; // Shutdown has come; nothing is decided after
    std::map<DeviceId, Device> devices;
    std::map<std::pair<DeviceId, WeightSetId>, WeightSet> weights;
    std::map<LeaseId, Lease> leases;
    std::map<LoadId, Load> loads;
    std::map<LoadKey, uint64_t> known_weight_bytes;  // of loads that were planned before
    std::map<LoadKey, uint64_t> known_load_overhead; // of their loaders
    uint64_t load_bytes_per_second = 0; // of the last load from a checkpoint; 0: none was seen
    std::set<LoadKey> pinned_keys;      // whose next set takes over a pin
    std::map<InstanceName, Instance> instances;
    std::map<std::string, ServiceRecord> services;
    Rollouts rollouts;
    std::map<OperationId, Operation> operations; // that are under way
    std::map<TimerId, Timer> timers;
    std::optional<TimerId> tier_timer; // kTiers
    TimePoint tier_timer_at;
    std::string tidied_dir;                // the folder of images that was tidied last
    std::map<std::string, Demand> demands; // of a class
    WallClock wall;
    std::map<std::string, std::vector<policies::Cron>> windows; // of classes that have such
    std::optional<TimerId> plan_timer; // the planner looks again at plan_at
    TimePoint plan_at;
    uint64_t next_id = 1; // of loads, timers, commands, arrivals
};

std::string_view to_string(OperationKind kind);   // "Preempt", "Resume", "Load", ...
std::string_view to_string(OperationState state); // "Running", "Succeeded", "Failed"
Result<OperationKind> operation_kind_from(std::string_view name);

} // namespace berth::node
