// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/engine_event.h"
#include "scheduler/node/weights_event.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

// What happens to a node. At start the order is: DeviceSeen*, WeightsAdopted*, InstanceRecovered*,
// OperationRecovered*, RolloutRecovered*, DocumentsApplied; from then on anything, in any order.
// Events about things that are gone (a late answer, a stale timer) are legal and change nothing.
namespace berth::node {

// All documents that hold from now on (not a part: see policies::overlay), checked.
struct DocumentsApplied {
    policies::Documents documents;
};
struct DeviceSeen {
    DeviceId id;
    DeviceKind kind = DeviceKind::kHost;
    std::string name;
    uint64_t total_bytes = 0;
    bool cordoned = false; // on record
    std::string cordon_reason{};
};
// An instance as the records have it. `alive`: its process (pid and start time) lives. A record
// without a pid of one that was started may have an unknown process, which is waited for until its
// deadline, unless `never_started`: who looked for it found none, and none that may yet become it.
struct InstanceRecovered {
    InstanceName name;
    InstanceState state = InstanceState::kPending;
    Desired desired = Desired::kRunning;
    HeldBy held_by = HeldBy::kNobody;
    std::string reason;
    std::string message;
    std::vector<DeviceId> devices;
    std::vector<WeightSetId> weights; // by rank
    uint32_t ranks = 1;
    ProcessRef process;
    std::vector<RankProcess> others; // the further ranks'
    bool alive = false;              // one of them at least; what is not whole is ended
    bool never_started = false;
    std::string token_sha256;
    std::string process_digest;
    std::string endpoint;
    uint64_t grant_bytes = 0;
    uint64_t grant_bytes_resume = 0;
    uint64_t grant_bytes_next = 0;
    HeldBy shrunk_by = HeldBy::kNobody;
    std::optional<InstanceState> came_from; // older records do not say
    uint64_t overhead_bytes = 0;
    uint64_t host_bytes = 0;
    uint64_t starts = 0;
    uint64_t restarts = 0;
    Phases phases;
    bool on_hold = false;
    std::string service;
    bool stands_by = false;
    uint64_t generation = 0;
    bool journals = false;
    std::string requests_digest;
    Nanoseconds start_took{0};
    std::optional<TimePoint> waiting_since; // not in the future
    std::vector<TimePoint> disruptions;
};
// An operation whose record says Running.
struct OperationRecovered {
    Operation operation;
};

// Operators.
struct OperatorPreempt {
    OperationId operation;
    InstanceName instance;
    policies::Rung mode = policies::Rung::kPause;
    std::optional<Nanoseconds> grace; // default: the policy's
    std::string reason;
    bool dry_run = false;
    std::optional<uint64_t> grant_bytes{}; // Shrink: down to this; default: the instance's request
};
struct OperatorResume {
    OperationId operation;
    InstanceName instance;
    std::string reason;
    bool dry_run = false;
};
// Hold: the planner neither starts nor resumes it until release; what runs goes on.
struct OperatorHold {
    OperationId operation;
    InstanceName instance;
    bool hold = true; // false: release
    std::string reason;
    bool dry_run = false;
};
// Finish what is under way, take nothing new, then end; it stays away until it is resumed.
struct OperatorDrain {
    OperationId operation;
    InstanceName instance;
    Nanoseconds timeout{0}; // then it is ended as by Evict
    std::string reason;
    bool dry_run = false;
};
// A standby takes over; the one before starts again and stands by.
struct OperatorPromote {
    OperationId operation;
    InstanceName instance;
    std::string reason;
    bool dry_run = false;
};
// A changed document for an instance that goes on serving; or what becomes of the one under way.
struct OperatorRollout {
    enum class Verb { kBegin, kPause, kResume, kUndo };
    OperationId operation;
    InstanceName instance;
    Verb verb = Verb::kBegin;
    policies::InstanceSpec spec{}; // kBegin: checked against all other documents
    bool pause = false;            // not further than Ready
    bool in_place = false;         // kBegin, kUndo: stop it first
    bool may_stop = false;         // the same, but only if there is no room beside it
    std::string reason;
    bool dry_run = false;
};
struct RolloutRecovered {
    Rollout rollout;
};
// What AdoptDocument asked for could not be done.
struct DocumentRefused {
    InstanceName instance;
    Error error;
};
// Nothing new on that device; what runs there goes on.
struct DeviceCordon {
    OperationId operation;
    DeviceId device;
    bool cordoned = true; // false: uncordon
    std::string reason;
    bool dry_run = false;
};
// Cordon, and drain every instance there; they return on other devices where there is room.
struct DeviceDrain {
    OperationId operation;
    DeviceId device;
    Nanoseconds timeout{0};
    std::string reason;
    bool dry_run = false;
};
// The wall clock, at start and about every minute (it may have been set).
struct WallClockTold {
    int64_t unix_seconds = 0;
    int64_t utc_offset_seconds = 0;
};
// What a process that SIGKILL does not end waits in: for the operator.
struct ProcessInspected {
    InstanceName instance;
    ProcessRef process;
    std::string words; // "state D in nvidia_uvm_..."
};
struct DeadlineExpired {
    TimerId timer{};
};
// berthd's own end: engines go on; nothing is decided any more.
struct Shutdown {};

using Event =
    std::variant<DocumentsApplied, DeviceSeen, WeightsAdopted, InstanceRecovered,
                 OperationRecovered, LoadRequested, LoadPlanned, LoadProgress, LoadSealed,
                 LoadFailed, LoaderExited, PublishRequested, PrivateLoadFilled, PrivateLoadEnded,
                 CanaryExpected, CanaryReported, LeaseOpened, LeaseClosed, WeightsDropped,
                 DropFailed, WeightsStale, ImageWritten, WeightsPin, WeightsEvict, ProcessStarted,
                 ProcessStartFailed, ProcessDying, ProcessExited, LeaderExited, ProcessStopped,
                 ProcessContinued, KillRefused, SessionOpened, SessionClosed, EngineStateChanged,
                 EngineReport, EngineHeard, CommandDone, BytesConfirmed, OperatorPreempt,
                 OperatorResume, OperatorHold, OperatorDrain, OperatorPromote, OperatorRollout,
                 RolloutRecovered, DocumentRefused, DeviceCordon, DeviceDrain, WallClockTold,
                 ProcessInspected, DeadlineExpired, Shutdown>;

} // namespace berth::node
