// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/packet_socket.h"
#include "base/units.h"
#include "engine_shim/protocol/load_messages.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

// What engines, loaders and berthd say to each other.
//
// One SEQPACKET message holds one JSON object: {"v": 1, "type": "attach", "id": 7, ...}, with
// descriptors beside it where a message says so. `id` pairs a request with its reply and with the
// progress in between; it is 0 in messages that want no reply. Unknown fields are ignored, so that
// a newer side may say more; an unknown type or another version is an error.
//
// An engine's life on the wire: hello -> welcome (fd: gate page); attach -> progress* -> attached
// (fds: manifest, segments); state(Ready); then command -> command_done, and report every second.
// The connection is the lease: when it closes, the lease has ended.
namespace berth::protocol {

inline constexpr int kVersion = 1;

// What an engine needs of a set's producer and platform: fields of the fingerprint; empty: any.
struct Environment {
    std::string device_kind;        // "host" or "cuda"
    std::string compute_capability; // "9.0"; empty on the host
    std::string cuda_version;       // driver API version, "13.0"; empty on the host
    std::string layout;             // layout tag, "berth-1"
    std::string torch_version;      // "any" where the layout does not depend on it
    bool operator==(const Environment&) const = default;
};

enum class EngineState { kStarting, kReady, kDraining, kSucceeded, kFailed };
enum class CommandKind { kPause, kResume, kOffload, kRestore, kStop, kShrink, kGrow, kServe };
std::string_view to_string(EngineState state);                       // "Starting", "Ready", ...
std::string_view to_string(CommandKind kind);                        // "Pause", ...
std::optional<EngineState> engine_state_from(std::string_view name); // nothing: no such state
// The object that an Attach carries, alone: berth-loader's --environment.
std::string environment_json(const Environment& environment);
Result<Environment> environment_from_json(std::string_view text);

// Engine -> berthd. An instance that berthd started presents its name and token; a guest (a tool, a
// test, an engine started by hand) has neither, gets no grant, and is known by its credentials.
// fds of one that returns and has inherited its socket: what berthd passed on to it, in that order,
// as whoever held it besides may be gone.
struct Hello {
    uint64_t id = 0;
    std::string instance;
    std::string token;
    std::string program; // "berth-engine 0.1.0", for people
    int pid = 0;
    uint64_t grant_bytes = 0; // what a returning engine has mapped now
    std::string state;        // EngineState of a returning engine, "" at first
    std::string endpoint;     // where it listens, "" if nowhere
    std::string held;         // what keeps it from running: "", "Paused", "Offloaded", "Standby"
    uint64_t generation = 0;  // as which it answers its socket; 0: it does not
    std::string identity;     // as in State
    std::vector<uint64_t> canary_tokens; // as in State
};

// berthd -> engine, and again (id 0) when class, targets or gate are others.
// fd 0: the device's gate page (read-only for those who never raise).
struct Welcome {
    uint64_t id = 0;
    std::string node;
    std::string instance;
    std::string model;               // the Model's name
    std::string model_path;          // its checkpoint's folder
    std::string dtype, quantization; // as the Model says; empty: as stored
    std::string device;              // "host-0", "GPU-..."
    std::string device_kind;
    std::string class_name;
    int64_t class_value = 0;
    bool raises_gate = false; // may raise demand (its fd is writable)
    uint32_t gate_slot = 0;   // its slot, if it raises
    uint64_t grant_bytes = 0; // what it may map now
    uint64_t grant_bytes_max = 0, slo_ttft_us = 0, slo_tpot_us = 0; // targets: 0: none
    uint64_t generation = 0; // answers its socket as this from the start; 0: not before Serve
};

// Engine -> berthd: by model name (an instance's own if empty), or by checkpoint folder, or by a
// weight set's id. With wait = false a set that is not resident is NotFound instead of loaded.
struct Attach {
    uint64_t id = 0;
    std::string model;
    std::string path;
    std::string weight_set;
    std::string device; // empty: the instance's, or the node's first
    Environment environment;
    bool wait = true;
};

struct Progress {
    uint64_t id = 0;
    std::string phase; // "waiting", "validating", "loading", "checking"
    uint64_t bytes_done = 0;
    uint64_t bytes_total = 0;
};

// fds: the manifest's memfd, then each segment.
struct Attached {
    uint64_t id = 0;
    std::string weight_set;  // its id: the first 16 digits of the fingerprint's SHA-256
    std::string fingerprint; // the SHA-256
    std::string model_path;
    std::vector<uint64_t> segment_bytes;
    bool verify_canary = false; // the set's canary must be reproduced before Ready
};

// Engine -> berthd, whenever it changes.
struct State {
    uint64_t id = 0;
    EngineState state = EngineState::kStarting;
    std::string endpoint; // "http://127.0.0.1:8000" once it listens
    std::string reason;   // CamelCase, with Failed
    std::string message;
    Phases phases; // start-up phases so far
    uint64_t grant_bytes = 0;
    uint64_t grant_bytes_least = 0; // with which it gets on; 0: not known yet
    std::string held;               // as in Hello: it may have changed while no berthd was there
    std::string weights;            // "shared ID" or "private (REASON)"; empty: none yet
    // What a request means here (weights, tokenizer, names, context): of two engines with the same
    // one goes on where the other stopped. Empty: it does not say, and never does so.
    std::string identity;
    // Its greedy answers to fixed prompts, two tokens each. Of two engines with the same identity
    // one answer at least is the same, though their kernels may add up otherwise.
    std::vector<uint64_t> canary_tokens;
};

// berthd -> engine. Pause: stop at the next boundary, fence, keep everything. Resume: go on.
// Offload: save (or drop) in-flight KV, give the grant back down to grant_bytes, keep the process.
// Restore: grow to grant_bytes, bring KV back, check with one canary step if asked, go on. Stop:
// finish or record what is under way within grace_ms, then exit. Shrink: give the grant's top back
// and go on below grant_bytes; what finds no room is saved or dropped as kv says. Grow: use more.
// Serve: a standby takes the socket of its pair, and what the one before left there, as
// `generation`. Stop with hand_over: let go of the socket at once, and of the connections that
// `leaves` names, which a successor goes on with; say State Draining then, and finish the others
// within grace_ms. Late: leave each when its request is over, and say it when all are left.
struct Command {
    uint64_t id = 0;
    CommandKind kind = CommandKind::kPause;
    uint64_t grant_bytes = 0;
    int64_t grace_ms = 0;
    std::string kv = "Auto"; // Auto | Save | Drop
    bool canary = true;
    uint64_t generation = 0;
    bool hand_over = false;
    // Nothing | Connections (without a request under way) | Late | Requests (all, as they are)
    std::string leaves = "Requests";
};

struct CommandDone {
    uint64_t id = 0;
    std::optional<Error> error; // none: done
    uint64_t grant_bytes = 0;   // mapped now
    uint64_t host_bytes = 0;    // host memory for saved KV, what is kept for next time included
    uint64_t saved_bytes = 0;   // KV that this command has copied there
    uint64_t moved_bytes = 0;   // and that it has moved within the grant
    Phases phases;
};

// Engine -> berthd, about once a second while it lives: liveness and load.
struct Report {
    uint64_t id = 0;
    uint64_t requests_running = 0, requests_waiting = 0, requests_done = 0;
    uint64_t tokens_done = 0;
    uint64_t steps_done = 0;
    uint64_t gate_pauses = 0;
    uint64_t grant_bytes = 0;
    uint64_t batch_done = 0, batch_total = 0; // lines of the batch file
    // Microseconds at percentiles 50 90 95 99 99.9 100 of late; empty: no request ended.
    std::vector<uint64_t> ttft_us, tpot_us;
    uint64_t step_ms = 0;         // how long the step under way has taken; 0: none is
    uint64_t short_of_memory = 0; // of those waiting: whom only the size of the grant keeps out
};

struct Failed {
    uint64_t id = 0;
    Error error;
};

using Message =
    std::variant<Hello, Welcome, Attach, Progress, Attached, State, Command, CommandDone, Report,
                 Failed, Planned, Go, Sealed, Kept, Publish, PrivateLoad, Release, Canary>;

std::string encode(const Message& message);
// InvalidArgument or Mismatch (another protocol version) for what is not a message.
Result<Message> decode(std::string_view payload);

// encode + send_packet / receive_packet + decode.
Status send(int socket, const Message& message, const std::vector<int>& fds, Deadline deadline);
struct Received {
    Message message;
    std::vector<UniqueFd> fds;
};
Result<Received> receive(int socket, Deadline deadline);

} // namespace berth::protocol
