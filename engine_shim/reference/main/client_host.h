// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"
#include "engine_shim/reference/main/engine_host.h"

#include <chrono>
#include <utility>

namespace berth::engine {

// The engine's host as it is in the program: berthd, through the client, which outlives this.
class ClientHost final : public EngineHost {
  public:
    explicit ClientHost(Client& client) : client_(client) {}

    std::optional<protocol::Command> next_command() override { return client_.next_command(); }
    void complete(protocol::CommandDone done) override {
        client_.complete(std::move(done));
        silent_ = true;
    }
    bool paused() const override { return client_.paused(); }
    void wait(Nanoseconds timeout) override { client_.wait(timeout); }
    void notify() override { client_.notify(); }
    bool must_yield() const override { return client_.must_yield(); }
    bool yield_here() override {
        silent_ = true;
        return client_.yield_here();
    }
    void raise_gate() override { client_.raise_gate(); }
    void lower_gate() override { client_.lower_gate(); }
    void note_progress(uint64_t later, Nanoseconds since_first) override {
        client_.note_progress(later, since_first);
    }
    void between_steps(Nanoseconds step) override { (void)client_.between_steps(step); }
    void step_begins() override { client_.step_begins(); }
    void step_ends() override { client_.step_ends(); }
    void serves_as(uint64_t generation) override { client_.serves_as(generation); }
    void has_left_socket() override {
        client_.serves_as(0);
        client_.set_state(protocol::EngineState::kDraining);
    }
    uint64_t gate_pauses() const override { return client_.counters().gate_pauses; }

    void report(const Load& load) override {
        Client::Counters& counters = client_.counters();
        counters.requests_running = load.running;
        counters.requests_waiting = load.waiting;
        counters.requests_done = load.done;
        counters.tokens_done = load.tokens;
        counters.steps_done = load.steps;
        counters.grant_bytes = load.grant_bytes;
        report_shortage(load.short_of_memory);
        report_first_token(load.tokens);
    }
    void report_batch(uint64_t done, uint64_t total) override {
        client_.counters().batch_done = done;
        client_.counters().batch_total = total;
    }

    void note_first_token(Nanoseconds first) override { client_.note_first_token(first); }
    void note_pace(Nanoseconds later) override { client_.note_pace(later); }
    void note_awaited(Nanoseconds longest) override { client_.note_awaited(longest); }
    void note_answered(Nanoseconds first, Nanoseconds later) override {
        client_.note_answered(first, later);
    }

  private:
    // At once, as berthd may have memory for them; but when it comes and goes, not each time.
    void report_shortage(uint64_t requests) {
        const auto now = std::chrono::steady_clock::now();
        if (client_.counters().short_of_memory.exchange(requests) != 0 || requests == 0 ||
            now < short_told_ + std::chrono::milliseconds(100))
            return;
        short_told_ = now;
        client_.report_now();
    }
    // The first token after a start, a command or a closed gate is reported at once, so that
    // berthd can say when work went on; those after it with the regular reports.
    void report_first_token(uint64_t tokens) {
        if (tokens == tokens_)
            return;
        tokens_ = tokens;
        if (std::exchange(silent_, false))
            client_.report_now();
    }

    Client& client_;
    std::chrono::steady_clock::time_point short_told_;
    uint64_t tokens_ = 0;
    bool silent_ = true;
};

} // namespace berth::engine
