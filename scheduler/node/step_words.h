// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <string>

// Inside scheduler/node/ only: small questions about an instance, and small answers.
namespace berth::node {

// What must be as small as this after Offload, and how far the driver's figure may be from the
// engine's word.
uint64_t confirm_slack_bytes(DeviceKind kind);
Desired desired_of(policies::Rung rung);
policies::Rung rung_of(Desired desired);
std::string object_of(const Instance& i); // "instance/NAME"
// A program without a session: it knows signals, no commands.
inline bool is_plain_process(const Instance& i) {
    return i.spec.engine.driver == policies::DriverKind::kProcess;
}
// Its grant is being enlarged: it counts as Reserved, and grant_bytes_next is what it had.
inline bool is_growing(const Instance& i) {
    return i.grant_bytes_next != 0 &&
           (i.state == InstanceState::kRunning || i.state == InstanceState::kPaused);
}
// A Shrink, or a resume into less room, has left it less than it had.
inline bool is_shrunk(const Instance& i) {
    return i.shrunk_by != HeldBy::kNobody && i.grant_bytes < i.grant_bytes_resume;
}

// What an operator asked of an instance, as the operation that will answer it.
template <typename Event>
Operation requested(const Event& event, OperationKind kind) {
    Operation operation;
    operation.id = event.operation;
    operation.kind = kind;
    operation.instance = event.instance;
    operation.object = "instance/" + event.instance.value;
    operation.cause = event.reason;
    operation.dry_run = event.dry_run;
    return operation;
}

inline Error instance_not_found(const InstanceName& name) {
    return Error{ErrorCode::kNotFound, "no instance '" + name.value + "'; see `berth status`",
                 "InstanceNotFound", 0};
}

} // namespace berth::node
