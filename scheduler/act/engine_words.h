// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/protocol/messages.h"
#include "scheduler/node/types.h"

// The node's words and the wire's for the same.
namespace berth {

inline node::EngineState engine_state_of(protocol::EngineState state) {
    switch (state) {
    case protocol::EngineState::kStarting:
        return node::EngineState::kStarting;
    case protocol::EngineState::kReady:
        return node::EngineState::kReady;
    case protocol::EngineState::kDraining:
        return node::EngineState::kDraining;
    case protocol::EngineState::kSucceeded:
        return node::EngineState::kSucceeded;
    case protocol::EngineState::kFailed:
        return node::EngineState::kFailed;
    }
    return node::EngineState::kUnknown;
}

inline protocol::CommandKind wire_kind(node::CommandKind kind) {
    switch (kind) {
    case node::CommandKind::kPause:
        return protocol::CommandKind::kPause;
    case node::CommandKind::kResume:
        return protocol::CommandKind::kResume;
    case node::CommandKind::kOffload:
        return protocol::CommandKind::kOffload;
    case node::CommandKind::kRestore:
        return protocol::CommandKind::kRestore;
    case node::CommandKind::kStop:
        return protocol::CommandKind::kStop;
    case node::CommandKind::kShrink:
        return protocol::CommandKind::kShrink;
    case node::CommandKind::kGrow:
        return protocol::CommandKind::kGrow;
    case node::CommandKind::kServe:
        return protocol::CommandKind::kServe;
    }
    return protocol::CommandKind::kStop;
}

inline const char* leaves_of(node::HandOver hand_over) {
    switch (hand_over) {
    case node::HandOver::kRequests:
        return "Requests";
    case node::HandOver::kLate:
        return "Late";
    case node::HandOver::kConnections:
        return "Connections";
    case node::HandOver::kSocket:
    case node::HandOver::kNo:
        break;
    }
    return "Nothing";
}

} // namespace berth
