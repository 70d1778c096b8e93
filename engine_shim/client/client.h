// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"
#include "cache/memory/device.h"
#include "engine_shim/client/latency_window.h"
#include "engine_shim/client/publication.h"
#include "engine_shim/client/state_copies.h"
#include "engine_shim/client/weight_set.h"
#include "engine_shim/protocol/messages.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// libberth for C++: how an engine lives under berthd. berth.h is the same as a C interface.
//
// An engine's main loop, in short:
//
//     auto client = Client::connect(ClientOptions::from_environment());
//     auto weights = client->attach({}, show_progress);   // mapped read-only
//     auto grant = client->create_grant(0);               // memory for KV, elastic
//     client->set_state(EngineState::kReady, endpoint);
//     while (!ended) {
//         while (auto command = client->next_command())   // Offload, Restore, Stop, Pause, Resume
//             client->complete(act_on(*command));
//         if (held or idle) { client->wait(100ms); continue; }
//         run one step; between layers: if (client->must_yield()) { fence; client->yield_here(); }
//     }
namespace berth {

enum class AttachMode {
    kClient, // berthd must be there
    kDaemon, // berthd is brought up if it is not there
    kOff,    // no berthd: this process runs berth-loader itself and receives the segments
};

// Where no shared set may be used: it is made for another configuration (Mismatch), or berthd is
// not there (guests only: an instance waits for the berthd that started it).
enum class Fallback {
    kDisk, // load privately, with a warning that names each field that differs
    kFail,
};

struct ClientOptions {
    AttachMode mode = AttachMode::kClient;
    std::optional<Fallback> fallback; // BERTH_FALLBACK; else disk in mode daemon, fail in client
    std::string socket;               // BERTH_SOCKET, else the default place (see default_socket())
    std::string instance;             // BERTH_INSTANCE; empty: a guest
    std::string token;                // BERTH_TOKEN
    std::string model_path;           // BERTH_MODEL_PATH; needed for kOff and for guests
    std::string device; // BERTH_DEVICE; for kOff and guests: "host-0", "cuda", "GPU-..."
    std::string program = "libberth";
    Nanoseconds connect_timeout = std::chrono::seconds(10);
    Fallback effective_fallback() const;
    // BERTH_MODE (client|daemon|off), BERTH_FALLBACK (disk|fail) and the variables above.
    static Result<ClientOptions> from_environment();
};

// /run/berth/berthd.sock for root, $XDG_RUNTIME_DIR/berth/berthd.sock else.
std::string default_socket();

struct AttachRequest {
    std::string model;                 // by name; empty: the instance's own
    std::string path;                  // or by checkpoint folder
    std::string weight_set;            // or by id
    bool wait = true;                  // false: NotFound when it is not resident
    protocol::Environment environment; // empty fields are filled from the device
    // Which rank's part a private load takes of how many; a shared set is named by berthd.
    uint32_t rank = 0, ranks = 1;
};

class Holding;
struct ManifestParts;

using ProgressCallback = std::function<void(const protocol::Progress&)>;

// The connection to berthd. It has one thread of its own, which receives commands, sends reports
// and, when berthd is gone, connects again with back-off and presents the token; mapping and grant
// stay meanwhile. All public calls are thread-safe (a Device is not: attach() and create_grant()
// use it for a moment); connect(), attach(), wait() and yield_here() block. Nothing may still be
// inside a call when the client is destroyed; weight sets and grants may outlive it.
class Client {
  public:
    static Result<std::unique_ptr<Client>> connect(ClientOptions options);
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    ~Client();

    // The latest; in kOff made up from the options, with grants of 0, which there means no limit.
    const protocol::Welcome& welcome() const;
    // Opened on first use. When that fails, every call on it gives the reason.
    Device& device();
    // kOff also when no berthd was there and the fallback was taken.
    AttachMode mode() const;

    // Shared; or private, as mode and fallback say: the set's private_reason() tells.
    Result<WeightSet> attach(const AttachRequest& request, const ProgressCallback& progress = {});

    // Begins to publish a set, or attaches to it if somebody else has published it (publication.h).
    // Waits while another publisher is at work; when that one dies, this one takes over.
    Result<PublishOutcome> publish(const PublishRequest& request,
                                   const ProgressCallback& progress = {});
    // Private, writable copies of a set's states; their bytes are this process's own to account
    // for within its grant.
    Result<std::unique_ptr<StateCopies>> copy_states(const WeightSet& weights);
    // Tells berthd what the set's canary gave here (SHA-256, 64 digits). Mismatch, with both
    // digests: this engine must not serve, and berthd ends an instance for it.
    Status report_canary(const WeightSet& weights, const std::string& digest);
    // The id of an attached set whose canary is still to be reproduced before Ready, or "".
    std::string canary_due() const;

    // The grant that welcome() names (0: all of grant_bytes_max), not yet backed: resize() it, and
    // store what is mapped in counters().grant_bytes, which berthd is told.
    Result<std::unique_ptr<GrantArena>> create_grant(uint64_t bytes_max);

    // Commands wait in a queue for the engine's loop. Pause and Resume come through it too; between
    // a completed Pause and the Resume paused() is true. A Pause while the loop sits in
    // yield_here() is completed there.
    std::optional<protocol::Command> next_command();
    void complete(protocol::CommandDone done);
    bool paused() const;
    // Sleeps until a command is there, `timeout`, or notify().
    void wait(Nanoseconds timeout);
    void notify();

    // Cheap enough for every layer: true when the gate is closed for this instance, an operator's
    // Pause is there or holds, or another command waits.
    bool must_yield() const;
    // Called after the device was fenced: completes a waiting Pause, sleeps while gate or Pause
    // hold. Returns false when a command other than Pause or Resume waits: give up the step (it
    // will be done again) and go to next_command().
    bool yield_here();
    // For what is computed outside of the loop, as at the start: sleeps while the gate is closed
    // and its share spent, at most so long and until a command comes. Returns how long.
    Nanoseconds wait_at_gate(Nanoseconds longest);
    // For a device that looks at the gate by itself: a word that changes whenever the gate may have
    // closed, in memory that lives as long as the client; null where no gate is watched. It knows
    // nothing of commands, and of no page that a later berthd brings: must_yield() between steps
    // does.
    const std::atomic<uint32_t>* gate_word() const;

    // Demand, for those that raise (online): from reading a request to having answered it.
    void raise_gate();
    void lower_gate();
    // For an engine that raises, after each of its steps that others wait for, with the time that
    // it took: sleeps while lower classes have a turn, if they have earned one by what the policy
    // leaves them (sharing.batchShareWhenBusy) and wait for it. A command and notify() end the
    // turn. Returns how long it slept. Engines that never call this are shared by the others'
    // clocks, step beside step.
    Nanoseconds between_steps(Nanoseconds step);
    // Before it, of each answer under way: how many tokens it has had after its first, and the time
    // since that. Where latency targets decide, no turn then is longer than all of these can bear.
    void note_progress(uint64_t later, Nanoseconds since_first);

    // For an engine that inherited its socket (base/inherited.h): it has accepted nothing and
    // waits for Serve, before it says Ready; or it answers the socket from now on, as this
    // generation, which welcome() or Serve has named. Both are told with the next state.
    void stand_by();
    void serves_as(uint64_t generation);

    void set_state(protocol::EngineState state, std::string endpoint = {}, std::string reason = {},
                   std::string message = {});
    void set_phase(const std::string& name, double milliseconds);
    // The grant with which it gets on, told with the next state: a standby is given no less.
    void set_grant_least(uint64_t bytes);
    // What a request means to it (protocol State.identity), told with the next state.
    void set_identity(const std::string& identity);
    // Its answers to fixed prompts (State.canary_tokens), told with the next state.
    void set_canary_tokens(const std::vector<uint64_t>& tokens);
    // The descriptors of the socket that it inherited, in the order in which it did, once: given
    // back to a berthd that returns, which may have lost its own.
    void hold_socket(std::vector<UniqueFd> descriptors);
    // What the next report says; filled in by the engine, read by the client's thread.
    struct Counters {
        std::atomic<uint64_t> requests_running{0}, requests_waiting{0}, requests_done{0};
        std::atomic<uint64_t> tokens_done{0}, steps_done{0}, gate_pauses{0}, grant_bytes{0};
        std::atomic<uint64_t> batch_done{0}, batch_total{0};
        std::atomic<uint64_t> short_of_memory{0}; // of those waiting: for a larger grant alone
        // When the step under way began, by the steady clock; 0: none is. See step_begins().
        std::atomic<int64_t> step_began_ns{0};
        // Of each answered request: until its first token, and per token after it.
        LatencyWindow ttft, tpot;
    };
    Counters& counters();
    // How requests fare. Reports tell percentiles; and where the policy lets latency targets
    // decide, it moves what lower classes may have of the time. An engine that knows a request only
    // once it is answered says so by note_latency(); tpot 0: it had one token. Others tell of each:
    // the first token when it comes, how long a token takes of late while more come, and
    // note_answered() at its end; and, at each step, how long whoever has waited longest for a
    // first token has done so (0: nobody waits). What misses a target lowers the share at once.
    void note_latency(Nanoseconds ttft, Nanoseconds tpot);
    void note_first_token(Nanoseconds ttft);
    void note_pace(Nanoseconds tpot);
    void note_awaited(Nanoseconds longest);
    void note_answered(Nanoseconds ttft, Nanoseconds tpot);
    // Around each step of the engine's loop: a step that does not come to its end shows in the
    // reports. What yield_here() waits for is not its time.
    void step_begins();
    void step_ends();
    // Sends the counters now instead of with the next second's report.
    void report_now();

  private:
    friend class Publication;
    Client();
    bool await_turn();
    void note_under_way(Nanoseconds ttft, Nanoseconds tpot);
    Result<WeightSet> attach_shared(Device& device, const AttachRequest& request,
                                    const ProgressCallback& progress);
    Result<WeightSet> attach_private(Device& device, const AttachRequest& request,
                                     const ProgressCallback& progress, const Error& why);
    std::string path_on_disk(const AttachRequest& request) const;
    bool falls_back(const Error& error, const AttachRequest& request) const;
    Result<std::shared_ptr<Holding>> charge_private(const protocol::Planned& planned,
                                                    const std::string& device, const Error& why);
    // Somebody else's set of the same inputs; `declared` (null: nothing was) is what it must be.
    Result<WeightSet> attach_published(Device& device, const protocol::Publish& asked,
                                       const ManifestParts* declared,
                                       const ProgressCallback& progress);
    std::shared_ptr<Holding> lease_of(const std::string& device,
                                      const protocol::Attached& attached);
    Result<WeightSet> mapped(Device& device, const protocol::Attached& attached,
                             std::vector<UniqueFd> fds, std::shared_ptr<Holding> own = nullptr);
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace berth
