// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"
#include "engine_shim/protocol/messages.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace berth::http {
enum class Leave;
}

namespace berth::engine {

// What the engine's loop needs of berthd, so that tests can play berthd: `Client` in the program.
// See client.h for what each call means.
class EngineHost {
  public:
    EngineHost() = default;
    EngineHost(const EngineHost&) = delete;
    EngineHost& operator=(const EngineHost&) = delete;
    virtual ~EngineHost() = default;

    virtual std::optional<protocol::Command> next_command() = 0;
    virtual void complete(protocol::CommandDone done) = 0;
    virtual bool paused() const = 0;
    virtual void wait(Nanoseconds timeout) = 0;
    virtual void notify() = 0;
    virtual bool must_yield() const = 0;
    virtual bool yield_here() = 0;
    virtual void raise_gate() = 0;
    virtual void lower_gate() = 0;
    virtual void note_progress(uint64_t later, Nanoseconds since_first) = 0;
    virtual void between_steps(Nanoseconds step) = 0;
    virtual void step_begins() = 0;
    virtual void step_ends() = 0;
    virtual void serves_as(uint64_t generation) = 0;
    virtual void has_left_socket() = 0;       // it answers it no more: told at once
    virtual uint64_t gate_pauses() const = 0; // how often yield_here() found the gate closed

    // Counters of the next report.
    struct Load {
        uint64_t running = 0, waiting = 0, done = 0, tokens = 0, steps = 0;
        uint64_t grant_bytes = 0;
        uint64_t short_of_memory = 0; // of those waiting: for a larger grant alone
    };
    virtual void report(const Load& load) = 0;
    virtual void report_batch(uint64_t done, uint64_t total) = 0;
    // Of requests; any thread.
    virtual void note_first_token(Nanoseconds first) = 0;
    virtual void note_pace(Nanoseconds later) = 0;
    virtual void note_awaited(Nanoseconds longest) = 0;
    virtual void note_answered(Nanoseconds first, Nanoseconds later) = 0;
};

// The side of a socket that berthd holds, as the loop commands it. Each call waits until it is
// done; from the engine's thread, or before that one runs.
class SocketSide {
  public:
    SocketSide() = default;
    SocketSide(const SocketSide&) = delete;
    SocketSide& operator=(const SocketSide&) = delete;
    virtual ~SocketSide() = default;

    // Answers the socket from now on, and goes on with what the engine before left. Waits a while
    // for that one's end.
    virtual Status serve(uint64_t generation) = 0;
    // Accepts nothing new, leaves to a successor what is kept of `what`, and lets it serve.
    virtual void leave(http::Leave what) = 0;
    // Connections that are still to end here.
    virtual size_t unfinished() = 0;
};

} // namespace berth::engine
