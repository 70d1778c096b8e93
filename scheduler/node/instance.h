// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

namespace berth::node {

// Each of them once, in their order: a view of `devices`, which must stay as they are meanwhile.
// The board asks for it of every instance, so nothing is copied.
inline auto each_once(const std::vector<DeviceId>& devices) {
    return devices | std::views::filter([&devices](const DeviceId& one) {
               return &*std::find(devices.begin(), devices.end(), one) == &one;
           });
}

// One engine: what was asked for, what it is, what it holds, what is under way on it.
struct Instance {
    InstanceName name;
    policies::InstanceSpec spec;
    std::string process_digest; // policies::process_digest of what its process was started with
    int64_t priority = 0;       // its class's value
    InstanceState state = InstanceState::kPending;
    Desired desired = Desired::kRunning;
    HeldBy held_by = HeldBy::kNobody;
    std::string substate; // Draining, Reclaiming, Reserving, Restoring, Verifying, Stopping, Killed
    std::string reason;   // CamelCase, "" when there is nothing to say
    std::string message;
    TimePoint since;    // of `state`
    uint64_t order = 0; // of arrival: ties of priority go to the older

    // Where it is placed; its grant and overhead count on each. Of several ranks: by rank, and one
    // that several share is there for each of them.
    std::vector<DeviceId> devices;
    std::vector<WeightSetId> weights; // by rank; leased from StartProcess until all have ended
    uint32_t ranks = 1;               // of its processes, as they were started
    ProcessRef process;               // rank 0's: all of them come and go as one
    std::vector<RankProcess> others;  // the further ranks', in order; empty before ProcessStarted
    bool process_alive = false; // from StartProcess (pid may still be unknown) until ProcessExited
    bool session = false;
    std::string token_sha256; // set by ProcessStarted; checked by who accepts sessions
    std::string program;
    std::string endpoint;
    EngineState engine_state = EngineState::kUnknown;
    std::string weights_source;            // "shared ID", "private (REASON)": the engine's word
    std::optional<WeightSetId> canary_due; // whose canary it must reproduce to be Running
    std::optional<WeightSetId> canary_met;
    Phases phases;
    Counters counters;
    PreemptionTotals preempted;

    GrantState grant_state = GrantState::kNone;
    uint64_t grant_bytes = 0;        // what the ledger counts for it now
    uint64_t grant_bytes_resume = 0; // what it had before Offload or Shrink; 0: as now
    uint64_t grant_bytes_next = 0;   // on its way there by Shrink or Grow; 0: neither
    // Whose Shrink keeps its grant small: the planner grows back its own, an operator's resume all.
    HeldBy shrunk_by = HeldBy::kNobody;
    bool shrink_spares = false;      // the Shrink takes what it can spare: missed, it is given up
    uint64_t overhead_bytes = 0;     // of its process on the device
    uint64_t host_bytes = 0;         // KV in host memory while Suspended
    uint64_t starts = 0;             // processes started so far
    uint64_t restarts = 0;           // of them after an end that was not asked for
    std::vector<TimePoint> failures; // within the crash-loop window
    TimePoint restart_at;            // back-off: not before
    bool restart_wanted = false;     // its spec has changed: stop, then start again
    bool remove_wanted = false;      // no longer in the documents: stop, then forget

    bool on_hold = false;               // neither started nor resumed until an operator's release
    TimePoint running_since;            // of this stretch of Running
    TimePoint waiting_since;            // not Running, and not of its own or an operator's will
    std::vector<TimePoint> disruptions; // Shrink, Offload, Evict by the planner, oldest first
    bool starving = false;              // waiting_since is longer ago than the policy allows
    bool boosted = false;               // it ranks with the next higher class (starvation)
    TimePoint refused_at;               // when it was last told why it waits for memory
    TimePoint grow_after;               // no try to give it more before
    // Requests wait for a larger grant: so its engine says, or none runs, twice in a row.
    bool cramped = false;
    bool burning = false; // its reports miss the target of a trigger or its slo

    // By whose name it answers a socket that outlives it (engine.listen), while its process lives;
    // whether another of that service does, and the latest generation as which one of them has.
    std::string service;
    bool stands_by = false;
    bool floor_only = false;        // standing by, it has the least grant; more when it takes over
    uint64_t grant_bytes_least = 0; // with which its engine, or one of its service, gets on
    uint64_t generation = 0;
    std::optional<TimePoint> serves_since; // its process was told to answer
    bool stale_told = false;               // that its generation was over: once for each process
    bool dying = false;                    // its process is ending: none of its code runs any more
    std::vector<TimePoint> heard_at;       // of each rank, the last word (watching.cpp)
    std::optional<TimerId> look_timer;     // whether there was one of late is looked at then
    TimePoint look_at;
    bool is_silent = false; // there was none, at a look that came in time
    // Of its process, or its last one: whether it journals what is in flight; what a request means
    // to it, in its own words and by the document that it was started with.
    bool journals = false;
    std::string identity;
    std::vector<uint64_t> canary_tokens; // its answers to fixed prompts; none: not told
    std::string requests_digest;
    Nanoseconds start_took{0}; // of its last process that ran: from its start until then

    std::optional<OperationId> operation; // the one under way
    std::optional<CommandId> command;     // sent, not answered
    CommandKind command_kind = CommandKind::kPause;
    std::optional<CommandId> late_command; // given up on; its answer may still come
    CommandKind late_kind = CommandKind::kPause;
    bool pause_late = false; // paused after all when that was given up: told to go on once it runs
    InstanceState came_from = InstanceState::kRunning; // where a preemption or resume began
    uint64_t claimed_grant_bytes = 0;   // the engine's word after Offload, to be confirmed
    std::optional<TimerId> timer;       // the deadline of what is under way
    std::optional<TimerId> aside_timer; // retries: confirm again, back-off
    std::optional<TimerId> serve_timer; // it is told to answer its socket
    TimePoint rung_started;
    TimePoint deadline; // of the current rung
    Nanoseconds grace{0};
    std::string last_decision; // to record a decision once

    bool is_on(const DeviceId& device) const {
        return std::find(devices.begin(), devices.end(), device) != devices.end();
    }
    // How many times its grant and overhead count there.
    uint64_t times_on(const DeviceId& device) const {
        return static_cast<uint64_t>(std::count(devices.begin(), devices.end(), device));
    }
    RankProcess rank_process(uint32_t rank) const {
        if (rank == 0)
            return {process, token_sha256};
        return rank <= others.size() ? others[rank - 1] : RankProcess();
    }
    auto places() const { return each_once(devices); }
    bool leases(const WeightSetId& set, const DeviceId& device) const {
        for (size_t rank = 0; rank < weights.size(); ++rank)
            if (weights[rank] == set && (ranks == 1 ? is_on(device) : devices[rank] == device))
                return true;
        return false;
    }
};

} // namespace berth::node
