// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/state.h"
#include "scheduler/node/step.h"

#include <array>

namespace berth::node {

namespace {

constexpr std::array<std::string_view, 12> kStates{
    "Pending",   "Loading",  "Starting",  "Running", "Preempting", "Paused",
    "Suspended", "Resuming", "Succeeded", "Failed",  "Evicted",    "Unkillable"};
constexpr std::array<std::string_view, 6> kDesired{"Running", "Paused",  "Suspended",
                                                   "Evicted", "Stopped", "Shrunk"};
constexpr std::array<std::string_view, 3> kHeldBy{"", "Operator", "Planner"};
constexpr std::array<std::string_view, 4> kGrants{"None", "Reserved", "Held", "Unconfirmed"};
constexpr std::array<std::string_view, 6> kEngineStates{"",         "Starting",  "Ready",
                                                        "Draining", "Succeeded", "Failed"};
constexpr std::array<std::string_view, 4> kHeld{"", "Paused", "Offloaded", "Standby"};
constexpr std::array<std::string_view, 8> kCommands{"Pause", "Resume", "Offload", "Restore",
                                                    "Stop",  "Shrink", "Grow",    "Serve"};
constexpr std::array<std::string_view, 17> kOperations{
    "Preempt", "Resume",  "Load",         "EvictWeights",  "Pin",        "Unpin",
    "Hold",    "Release", "Drain",        "Cordon",        "Uncordon",   "DrainDevice",
    "Promote", "Rollout", "RolloutPause", "RolloutResume", "RolloutUndo"};
constexpr std::array<std::string_view, 10> kRolloutPhases{
    "Starting",  "Ready",     "HandingOver", "Following", "Returning",
    "Replacing", "Reverting", "Complete",    "Failed",    "Undone"};
constexpr std::array<std::string_view, 3> kOperationStates{"Running", "Succeeded", "Failed"};

template <typename Enum, size_t N>
Result<Enum> from_name(const std::array<std::string_view, N>& names, std::string_view name,
                       std::string_view what) {
    for (size_t i = 0; i < N; ++i)
        if (names[i] == name)
            return static_cast<Enum>(i);
    return fail(ErrorCode::kInvalidArgument,
                "unknown " + std::string(what) + " '" + std::string(name) + "'");
}

template <typename Enum, size_t N>
std::string_view name_of(const std::array<std::string_view, N>& names, Enum value) {
    return names.at(static_cast<size_t>(value));
}

} // namespace

std::string_view to_string(InstanceState state) {
    return name_of(kStates, state);
}
std::string_view to_string(Desired desired) {
    return name_of(kDesired, desired);
}
std::string_view to_string(HeldBy held_by) {
    return name_of(kHeldBy, held_by);
}
std::string_view to_string(GrantState state) {
    return name_of(kGrants, state);
}
std::string_view to_string(EngineState state) {
    return name_of(kEngineStates, state);
}
std::string_view to_string(EngineHeld held) {
    return name_of(kHeld, held);
}
std::string_view to_string(CommandKind kind) {
    return name_of(kCommands, kind);
}
std::string_view to_string(OperationKind kind) {
    return name_of(kOperations, kind);
}
std::string_view to_string(RolloutPhase phase) {
    return name_of(kRolloutPhases, phase);
}
Result<RolloutPhase> rollout_phase_from(std::string_view name) {
    return from_name<RolloutPhase>(kRolloutPhases, name, "phase of a rollout");
}
std::string_view to_string(OperationState state) {
    return name_of(kOperationStates, state);
}

Result<InstanceState> instance_state_from(std::string_view name) {
    return from_name<InstanceState>(kStates, name, "state of an instance");
}
Result<Desired> desired_from(std::string_view name) {
    return from_name<Desired>(kDesired, name, "desired state");
}
Result<HeldBy> held_by_from(std::string_view name) {
    return from_name<HeldBy>(kHeldBy, name, "holder");
}
Result<EngineState> engine_state_from(std::string_view name) {
    return from_name<EngineState>(kEngineStates, name, "state of an engine");
}
Result<EngineHeld> engine_held_from(std::string_view name) {
    return from_name<EngineHeld>(kHeld, name, "reason why an engine is held");
}
Result<OperationKind> operation_kind_from(std::string_view name) {
    return from_name<OperationKind>(kOperations, name, "kind of operation");
}

Desired desired_of(policies::Rung rung) {
    switch (rung) {
    case policies::Rung::kPause:
        return Desired::kPaused;
    case policies::Rung::kShrink:
        return Desired::kShrunk;
    case policies::Rung::kOffload:
        return Desired::kSuspended;
    case policies::Rung::kEvict:
        break;
    }
    return Desired::kEvicted;
}

policies::Rung rung_of(Desired desired) {
    if (desired == Desired::kPaused)
        return policies::Rung::kPause;
    if (desired == Desired::kShrunk)
        return policies::Rung::kShrink;
    return desired == Desired::kSuspended ? policies::Rung::kOffload : policies::Rung::kEvict;
}

uint64_t confirm_slack_bytes(DeviceKind kind) {
    return kind == DeviceKind::kCuda ? 64ULL << 20 : 2ULL << 20;
}

} // namespace berth::node
