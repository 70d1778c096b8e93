// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "cache/memory/device.h"
#include "policies/spec.h"

#include <array>
#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

// The words of the node's state: ids, states, and small values that events and actions share.
namespace berth::node {

// Steady time, passed in with each event; the reducer knows no other clock.
using TimePoint = std::chrono::steady_clock::time_point;

// A name or id that cannot be mistaken for another kind of name.
template <typename Tag>
struct Name {
    std::string value;
    Name() = default;
    explicit Name(std::string text) : value(std::move(text)) {}
    bool empty() const { return value.empty(); }
    auto operator<=>(const Name&) const = default;
    friend std::ostream& operator<<(std::ostream& out, const Name& name) {
        return out << name.value;
    }
};
using InstanceName = Name<struct InstanceTag>;
using ModelName = Name<struct ModelTag>;
using DeviceId = Name<struct DeviceTag>;       // "host-0", "GPU-..."
using WeightSetId = Name<struct WeightSetTag>; // 16 digits of the fingerprint's SHA-256
using OperationId = Name<struct OperationTag>; // chosen by the caller

enum class LoadId : uint64_t {}; // one run of berth-loader
enum class TimerId : uint64_t {};
enum class CommandId : uint64_t {}; // Command.id on the wire
enum class LeaseId : uint64_t {};   // chosen by the caller: one per lease of a guest

// A process, for good: pids are used again. pid 0: none known.
struct ProcessRef {
    int pid = 0;
    uint64_t start_ticks = 0;
    explicit operator bool() const { return pid != 0; }
    bool operator==(const ProcessRef&) const = default;
};

// The process of a further rank; rank 0's is its instance's own.
struct RankProcess {
    ProcessRef process;
    std::string token_sha256;
    bool operator==(const RankProcess&) const = default;
};

// What policy.md calls the states of an instance.
enum class InstanceState {
    kPending,  // waits for room, for its back-off, or for its turn; the reason says which
    kLoading,  // its weight set is being loaded
    kStarting, // its process is being started, or has not said Ready yet
    kRunning,
    kPreempting, // on its way to `desired`
    kPaused,     // at a layer boundary, all memory kept
    kSuspended,  // offloaded: grant returned, process and weights kept
    kResuming,
    kSucceeded,  // ended by itself, all work done
    kFailed,     // given up; the reason says why; resume starts it again
    kEvicted,    // process ended on purpose; returns when there is room, or by resume
    kUnkillable, // SIGKILL did not end it: its bytes count and its device is cordoned until it ends
};
// Where an instance is meant to be. In Preempting it is the rung that is being taken.
enum class Desired { kRunning, kPaused, kSuspended, kEvicted, kStopped, kShrunk };
// Who holds an instance in Paused, Suspended or Evicted: an operator until resume, the planner
// until there is room.
enum class HeldBy { kNobody, kOperator, kPlanner };
// What the ledger knows about an instance's bytes.
enum class GrantState {
    kNone,
    kReserved,    // set aside for a start or a resume that is under way
    kHeld,        // the engine is connected and has them
    kUnconfirmed, // the process lives, the connection is gone: not placed until it is back or ended
};
// An engine's own word (the wire's State message).
enum class EngineState { kUnknown, kStarting, kReady, kDraining, kSucceeded, kFailed };
// What keeps a returning engine from running (Hello.held).
enum class EngineHeld { kNothing, kPaused, kOffloaded, kStandby };
enum class CommandKind { kPause, kResume, kOffload, kRestore, kStop, kShrink, kGrow, kServe };
// What of its service one that is stopped lets go of at once: nothing, as nobody follows it; the
// socket, and with it the connections that have no request under way, or all of them. The rest it
// finishes; kLate: as far as its time goes, and leaves what is left.
enum class HandOver { kNo, kSocket, kConnections, kLate, kRequests };

using Phases = std::map<std::string, double>; // name of a phase -> milliseconds

inline constexpr std::array<double, 6> kPercentiles{50, 90, 95, 99, 99.9, 100};

// What an engine reports about once a second.
struct Counters {
    uint64_t requests_running = 0;
    uint64_t requests_waiting = 0;
    uint64_t requests_done = 0;
    uint64_t tokens_done = 0;
    uint64_t steps_done = 0;
    uint64_t gate_pauses = 0;
    uint64_t grant_bytes = 0;
    uint64_t batch_done = 0;
    uint64_t batch_total = 0;
    // Milliseconds at kPercentiles over its last requests; 0: none in that time.
    std::array<double, 6> ttft_ms{};
    std::array<double, 6> tpot_ms{};
    uint64_t step_ms = 0;         // how long its step under way has taken; 0: none is
    uint64_t short_of_memory = 0; // of those waiting: whom only the size of the grant keeps out
    bool operator==(const Counters&) const = default;
};

// What preemptions of an instance have done since this berthd began: those that reached their end.
struct PreemptionTotals {
    uint64_t count = 0;
    uint64_t bytes_freed = 0;
    uint64_t bytes_saved = 0; // of KV, to host memory
    uint64_t bytes_moved = 0; // of KV, within the grant
};

// What makes two loads the same: a checkpoint folder, the device, and what is made of it. Each rank
// of several has a part of its own.
struct LoadKey {
    std::string path;
    std::string dtype = "auto";
    DeviceId device;
    std::string quantization = "none";
    uint32_t rank = 0;
    uint32_t ranks = 1;
    auto operator<=>(const LoadKey&) const = default;
};

std::string_view to_string(InstanceState state); // "Pending", ...
std::string_view to_string(Desired desired);     // "Running", "Paused", "Suspended", ...
std::string_view to_string(HeldBy held_by);      // "", "Operator", "Planner"
std::string_view to_string(GrantState state);    // "None", "Reserved", "Held", "Unconfirmed"
std::string_view to_string(EngineState state);   // "", "Starting", "Ready", ...
std::string_view to_string(EngineHeld held);     // "", "Paused", "Offloaded", ...
std::string_view to_string(CommandKind kind);    // "Pause", ...
// The reverse of to_string; nullopt-like InvalidArgument for an unknown word.
Result<InstanceState> instance_state_from(std::string_view name);
Result<Desired> desired_from(std::string_view name);
Result<HeldBy> held_by_from(std::string_view name);
Result<EngineState> engine_state_from(std::string_view name);
Result<EngineHeld> engine_held_from(std::string_view name);

} // namespace berth::node
