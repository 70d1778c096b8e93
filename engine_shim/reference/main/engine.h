// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/main/engine_host.h"
#include "engine_shim/reference/main/kv_memory.h"
#include "engine_shim/reference/main/rehearsal.h"
#include "engine_shim/reference/model/scheduler.h"
#include "engine_shim/reference/serve/engine_api.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace berth::engine {

struct EngineSettings {
    std::string model_name;
    uint32_t vocab = 0;
    uint32_t max_context = 0;
    uint32_t max_batch = 16;
    std::vector<int32_t> eos_tokens;
    bool weights_private = false;
    uint64_t capacity_blocks = 0; // of the largest grant: what a request may need at most
    uint32_t queue_max = 4096;    // requests waiting; more are ResourceExhausted
    bool drain_on_stop = true;    // finish what is running within the grace time
    std::string compute;          // for the log: how it computes
    uint64_t block_bytes = 0;     // of KV, all ranks together
    uint32_t fence_layers = 0;    // on a GPU: wait for the device each so many layers, so that a
                                  // closed gate is obeyed within them; 0 never
};

// The engine's loop. run() is the engine's thread: it takes requests from its queue, steps the
// scheduler, looks at the gate between layers and obeys berthd's commands. The other calls may come
// from any thread and only touch the queue, which mutex_ guards; it is never held during a step or
// a callback.
class Engine final : public EngineApi {
  public:
    struct Parts {
        EngineHost& host;
        Scheduler& scheduler;
        StepModel& model;
        KvMemory& memory;
        Rehearsal* rehearsal = nullptr; // for one that stands by; null: there is none
    };
    Engine(EngineSettings settings, Parts parts);

    // For Serve and for each kind of end; before run(), which it outlives. Without one Serve is
    // refused, and nothing is left to a successor.
    void use(SocketSide& socket_side) { socket_side_ = &socket_side; }
    // Until Stop, request_stop(), or until the device does not compute any more (the error).
    Status run();
    // Ends run(): within `grace` for what is running if settings say so, else after this layer.
    // What is not done then is left to a successor, if a socket was inherited.
    void request_stop(Nanoseconds grace);

    Status submit(GenerationRequest request, TokenCallback callback) override;
    void cancel(const std::string& id) override;
    void on_request_begin() override { parts_.host.raise_gate(); }
    void on_request_end() override { parts_.host.lower_gate(); }
    void on_awaited(Clock::time_point begun) override;
    void on_first_token(Clock::time_point begun, double first) override;
    void on_none_awaited(Clock::time_point begun) override;
    void on_pace(double later) override;
    void on_answered(double first, double later) override;
    EngineStats stats() const override;
    const std::string& model_name() const override { return settings_.model_name; }
    uint32_t vocab_size() const override { return settings_.vocab; }
    uint32_t max_context() const override { return settings_.max_context; }
    uint32_t max_batch() const override { return settings_.max_batch; }
    const std::vector<int32_t>& eos_tokens() const override { return settings_.eos_tokens; }
    void report_batch(uint64_t done, uint64_t total) override {
        parts_.host.report_batch(done, total);
    }

  private:
    struct Submission {
        GenerationRequest request;
        TokenCallback callback;
    };
    Status check(const GenerationRequest& request) const;
    void obey_commands();
    protocol::CommandDone obey(const protocol::Command& command);
    Status serve(uint64_t generation);
    void begin_stop(Nanoseconds grace, bool hand_over);
    bool may_end();
    void take_submissions();
    TokenCallback told_late(TokenCallback callback);
    void tell_failed();
    bool held() const { return parts_.memory.offloaded() || parts_.host.paused(); }
    Status step();
    void rest();
    bool may_rehearse() const;
    Status rehearse();
    void give_turn(Nanoseconds step);
    bool at_layer(uint32_t layer);
    void publish();
    uint64_t short_of_memory() const;
    uint64_t saved_bytes() const;
    using Places = std::map<uint64_t, std::vector<uint32_t>>; // of blocks, by sequence
    Places places() const;
    uint64_t moved_bytes(const Places& before) const;
    void tell_awaited();
    void end_all(bool leaves);

    const EngineSettings settings_;
    Parts parts_;
    SocketSide* socket_side_ = nullptr; // null: no socket was inherited

    mutable std::mutex mutex_; // guards what follows up to stats_
    std::vector<Submission> submitted_;
    std::vector<std::string> cancelled_;
    bool accepting_ = true;
    EngineStats stats_;
    std::mutex awaited_mutex_;                 // guards awaited_
    std::multiset<Clock::time_point> awaited_; // since when whoever has no token waits for it

    std::atomic<int64_t> stop_grace_ns_{-1}; // -1: none asked for
    // Engine thread alone:
    bool has_served_ = false;
    bool has_rested_ = false; // nobody has wanted anything for a while
    bool stopping_ = false;
    bool hands_over_ = false;
    http::Leave leaves_; // of Stop: what is the successor's at once
    // Requests that a step's failure has ended, and who is told once it is known whether the device
    // still computes: if not, a successor goes on with them.
    std::vector<std::pair<TokenCallback, TokenEvent>> failed_;
    bool starved_ = false;   // nobody who waits fits the grant
    Nanoseconds stepped_{0}; // since others could last have a turn
    Clock::time_point stop_at_;
    std::optional<protocol::Command> stop_command_;
    std::string last_error_;
};

} // namespace berth::engine
