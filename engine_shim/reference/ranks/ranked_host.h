// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/main/engine_host.h"
#include "engine_shim/reference/ranks/lead.h"

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

namespace berth::engine {

// How long a rank keeps a command that the others do not have. Rank 0 answers first.
inline constexpr Nanoseconds kAgreeWait = std::chrono::seconds(10);

// berthd as rank 0 of several sees it: commands that change memory come when all ranks have them,
// and a Pause of another rank holds this one. What it waits for others where all stand still is not
// its step's time. `host` and `lead` outlive it.
class RankedHost final : public EngineHost {
  public:
    RankedHost(EngineHost& host, Lead& lead, Nanoseconds agree_wait = kAgreeWait)
        : host_(host), lead_(lead), agree_wait_(agree_wait) {
        lead_.on_wait([this](bool waits) { waits ? host_.step_ends() : host_.step_begins(); });
    }
    ~RankedHost() override { lead_.on_wait({}); }

    std::optional<protocol::Command> next_command() override;
    void complete(protocol::CommandDone done) override;
    bool paused() const override { return host_.paused() || lead_.held(); }
    void wait(Nanoseconds timeout) override;
    void notify() override { host_.notify(); }
    bool must_yield() const override { return host_.must_yield() || lead_.wants_hold(); }
    bool yield_here() override { return host_.yield_here(); }
    void raise_gate() override {
        host_.raise_gate();
        lead_.raise_gate();
    }
    void lower_gate() override {
        host_.lower_gate();
        lead_.lower_gate();
    }
    void note_progress(uint64_t later, Nanoseconds since_first) override {
        host_.note_progress(later, since_first);
    }
    void between_steps(Nanoseconds step) override { host_.between_steps(step); }
    void step_begins() override { host_.step_begins(); }
    void step_ends() override { host_.step_ends(); }
    void serves_as(uint64_t generation) override { host_.serves_as(generation); }
    void has_left_socket() override { host_.has_left_socket(); }
    uint64_t gate_pauses() const override { return host_.gate_pauses(); }
    void report(const Load& load) override { host_.report(load); }
    void report_batch(uint64_t done, uint64_t total) override { host_.report_batch(done, total); }
    void note_first_token(Nanoseconds first) override { host_.note_first_token(first); }
    void note_pace(Nanoseconds later) override { host_.note_pace(later); }
    void note_awaited(Nanoseconds longest) override { host_.note_awaited(longest); }
    void note_answered(Nanoseconds first, Nanoseconds later) override {
        host_.note_answered(first, later);
    }

  private:
    using Clock = std::chrono::steady_clock;
    EngineHost& host_;
    Lead& lead_;
    const Nanoseconds agree_wait_;
    std::deque<std::pair<protocol::Command, Clock::time_point>> commands_; // with when they came
    std::optional<protocol::Command> obeying_;                             // with the other ranks
};

} // namespace berth::engine
