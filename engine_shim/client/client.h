// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"
#include "cache/memory/device.h"
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

struct ClientOptions {
    AttachMode mode = AttachMode::kClient;
    std::string socket;     // BERTH_SOCKET, else the default place (see default_socket())
    std::string instance;   // BERTH_INSTANCE; empty: a guest
    std::string token;      // BERTH_TOKEN
    std::string model_path; // BERTH_MODEL_PATH; needed for kOff and for guests
    std::string device;     // BERTH_DEVICE; for kOff and guests: "host-0", "cuda", "GPU-..."
    std::string program = "libberth";
    Nanoseconds connect_timeout = std::chrono::seconds(10);
    // BERTH_MODE (client|daemon|off) and the variables above.
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
};

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
    AttachMode mode() const;

    Result<WeightSet> attach(const AttachRequest& request, const ProgressCallback& progress = {});

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

    // Demand, for those that raise (online): from reading a request to having answered it.
    void raise_gate();
    void lower_gate();

    void set_state(protocol::EngineState state, std::string endpoint = {}, std::string reason = {},
                   std::string message = {});
    void set_phase(const std::string& name, double milliseconds);
    // What the next report says; filled in by the engine, read by the client's thread.
    struct Counters {
        std::atomic<uint64_t> requests_running{0}, requests_waiting{0}, requests_done{0};
        std::atomic<uint64_t> tokens_done{0}, steps_done{0}, gate_pauses{0}, grant_bytes{0};
        std::atomic<uint64_t> batch_done{0}, batch_total{0};
    };
    Counters& counters();
    // Sends the counters now instead of with the next second's report.
    void report_now();

  private:
    Client();
    Result<WeightSet> attach_shared(Device& device, const AttachRequest& request,
                                    const ProgressCallback& progress);
    Result<WeightSet> attach_private(Device& device, const AttachRequest& request,
                                     const ProgressCallback& progress);
    Result<WeightSet> mapped(Device& device, std::string id, std::string fingerprint,
                             std::string model_path, const std::vector<uint64_t>& segment_bytes,
                             std::vector<UniqueFd> fds);
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace berth
