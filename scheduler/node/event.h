// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/engine_event.h"
#include "scheduler/node/weights_event.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

// What happens to a node. At start the order is: DeviceSeen*, WeightsAdopted*, InstanceRecovered*,
// OperationRecovered*, DocumentsApplied; from then on anything, in any order. Events about things
// that are gone (a late answer, a stale timer) are legal and change nothing.
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
};
// An instance as the records have it. `alive`: its process (pid and start time) lives. A record in
// Starting without a pid may have an unknown process: it is waited for until the start deadline.
struct InstanceRecovered {
    InstanceName name;
    InstanceState state = InstanceState::kPending;
    Desired desired = Desired::kRunning;
    HeldBy held_by = HeldBy::kNobody;
    std::string reason;
    std::string message;
    DeviceId device;     // empty: none
    WeightSetId weights; // empty: none
    ProcessRef process;
    bool alive = false;
    std::string token_sha256;
    std::string process_digest;
    std::string endpoint;
    uint64_t grant_bytes = 0;
    uint64_t grant_bytes_resume = 0;
    uint64_t overhead_bytes = 0;
    uint64_t host_bytes = 0;
    uint64_t starts = 0;
    uint64_t restarts = 0;
    Phases phases;
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
};
struct OperatorResume {
    OperationId operation;
    InstanceName instance;
    std::string reason;
    bool dry_run = false;
};
struct DeadlineExpired {
    TimerId timer{};
};
// berthd's own end: engines go on; nothing is decided any more.
struct Shutdown {};

using Event = std::variant<DocumentsApplied, DeviceSeen, WeightsAdopted, InstanceRecovered,
                           OperationRecovered, LoadRequested, LoadPlanned, LoadProgress, LoadSealed,
                           LoadFailed, LoaderExited, PublishRequested, PrivateLoadEnded,
                           CanaryExpected, CanaryReported, LeaseOpened, LeaseClosed, WeightsDropped,
                           WeightsStale, ImageWritten, WeightsPin, WeightsEvict, ProcessStarted,
                           ProcessStartFailed, ProcessExited, SessionOpened, SessionClosed,
                           EngineStateChanged, EngineReport, CommandDone, BytesConfirmed,
                           OperatorPreempt, OperatorResume, DeadlineExpired, Shutdown>;

} // namespace berth::node
