// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <optional>
#include <string>
#include <vector>

// Events about engines: their processes, their sessions, their answers.
namespace berth::node {

// Processes and sessions.
struct ProcessStarted {
    InstanceName instance;
    ProcessRef process;
    std::string token_sha256;
    std::vector<RankProcess> others{}; // the further ranks'
};
struct ProcessStartFailed {
    InstanceName instance;
    Error error;
};
// Its end has begun: it has given up its connection and runs none of its code any more. The kernel
// may still be busy with what it held: ProcessExited follows.
struct ProcessDying {
    InstanceName instance;
    ProcessRef process;
};
struct ProcessExited {
    InstanceName instance;
    ProcessRef process;      // stale ones are ignored; pid 0: the current one
    bool clean = false;      // exit code 0
    std::string description; // "exit code 3", "killed by SIGKILL", "ended"
    std::string log_path;
};
// Its first process has ended, others that it had started have not: they are being killed, and
// ProcessExited comes when the last one is gone (and the driver counts nothing for any of them).
struct LeaderExited {
    InstanceName instance;
    ProcessRef process;
    std::string description; // as in ProcessExited
    std::string left;        // "pid 12 (worker), pid 14 (worker)"
};
// After StopProcess: the whole tree stands still, by /proc. After ContinueProcess: it runs.
struct ProcessStopped {
    InstanceName instance;
    ProcessRef process;
};
struct ProcessContinued {
    InstanceName instance;
    ProcessRef process;
};
// KillProcess was not done, since it would harm others; `words` say why.
struct KillRefused {
    InstanceName instance;
    ProcessRef process;
    std::string words;
};
// A Hello whose token was right.
struct SessionOpened {
    InstanceName instance;
    ProcessRef process; // from the peer's credentials
    std::string program;
    std::string endpoint;
    uint64_t grant_bytes = 0; // mapped now
    EngineState engine_state = EngineState::kUnknown;
    EngineHeld held = EngineHeld::kNothing;
    uint64_t generation = 0; // as which it answers its socket; 0: it does not
    std::string identity{};  // as in EngineStateChanged
    std::vector<uint64_t> canary_tokens{};
};
struct SessionClosed {
    InstanceName instance;
};
struct EngineStateChanged {
    InstanceName instance;
    EngineState state = EngineState::kStarting;
    std::string endpoint;
    std::string reason;
    std::string message;
    Phases phases;
    uint64_t grant_bytes = 0;
    uint64_t grant_bytes_least = 0;        // with which it gets on; 0: not known
    std::string weights;                   // "shared ID", "private (REASON)"; empty: nothing new
    std::string identity;                  // what a request means to it; empty: nothing new
    std::vector<uint64_t> canary_tokens{}; // (protocol State); empty: nothing new
};
struct EngineReport { // rank 0's: it is heard, too
    InstanceName instance;
    Counters counters;
};
// That rank's process has said something, as each does about once a second.
struct EngineHeard {
    InstanceName instance;
    uint32_t rank = 0;
};
struct CommandDone {
    InstanceName instance;
    CommandId command{};
    std::optional<Error> error;
    uint64_t grant_bytes = 0;
    uint64_t host_bytes = 0;
    uint64_t saved_bytes = 0;
    uint64_t moved_bytes = 0;
    Phases phases;
};
// The driver's figure for what the process holds on its device as grant (host: its "berth-grant"
// memfds; cuda: its bytes by NVML less weights and overhead). nullopt: the driver does not say.
struct BytesConfirmed {
    InstanceName instance;
    std::optional<uint64_t> grant_bytes;
    ProcessRef process{}; // that was asked about
};

} // namespace berth::node
