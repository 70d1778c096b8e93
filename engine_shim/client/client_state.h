// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/client.h"
#include "engine_shim/client/command_queue.h"
#include "engine_shim/client/daemon_start.h"
#include "engine_shim/client/gate_side.h"
#include "engine_shim/client/held_memory.h"
#include "engine_shim/client/link.h"
#include "engine_shim/client/share_meter.h"
#include "engine_shim/client/turn_slack.h"

#include <mutex>

namespace berth {

// Empty fields are the device's own.
protocol::Environment filled(protocol::Environment environment, const Device& device);

// What a Client is made of. The link is the last member, so that its thread ends before anything
// that it calls.
struct Client::State final : LinkListener {
    explicit State(ClientOptions given);
    ~State() override { held->use(nullptr); }

    protocol::Hello hello() override;
    std::vector<int> hello_fds() override;
    protocol::Report report() override;
    Status on_welcome(protocol::Welcome next, UniqueFd gate_fd) override;
    void on_up(uint64_t epoch) override;
    void on_command(protocol::Command command, uint64_t epoch) override;
    void on_tick() override;

    // What lower classes may have of the time, as `move` makes of it now.
    template <typename Move>
    void move_spare(const Move& move) {
        const protocol::Welcome* now = welcome.load();
        if (now == nullptr)
            return;
        const auto target = [](uint64_t us) {
            return Nanoseconds(static_cast<int64_t>(us) * 1000);
        };
        const std::lock_guard lock(spare_mutex);
        gate.set_spare(
            move(spare, SpareTime::Targets{target(now->slo_ttft_us), target(now->slo_tpot_us)}));
    }

    // Waits for the first welcome, starting berthd on the way if the mode says so.
    Status first_connection();
    Status check_attempt(const Link::Attempt& attempt, Deadline& deadline);
    void set_welcome(protocol::Welcome next);
    // Whether the gate is closed and its share of the time is spent.
    bool gate_stops();
    void set_weights(const std::string& weights); // "shared ID", "private (REASON)"
    void announce_locked();                       // sends the State; state_mutex is held
    void answer(const protocol::CommandDone& done, uint64_t epoch);
    // After answers: what was answered to a connection that is gone is told as a state.
    void after_answers();
    Result<Device*> open_device();

    const ClientOptions options;
    AttachMode mode;                // options.mode, or kOff after the fallback
    std::optional<Error> no_daemon; // why berthd was not there
    Counters counters;
    GateSide gate;
    ShareMeter meter; // of a closed gate: the engine's thread
    TurnBook turns;   // of one that raises: the engine's thread
    TurnSlack slack;  // the same
    std::mutex spare_mutex;
    SpareTime spare;
    CommandQueue commands;

    // Welcomes are kept until the end, since welcome() hands out references; one is added only when
    // berthd says something new.
    std::mutex welcome_mutex;
    std::vector<std::unique_ptr<protocol::Welcome>> welcomes;
    std::atomic<const protocol::Welcome*> welcome{nullptr};

    std::mutex state_mutex; // guards the three below; the queue's and link's locks come after
    protocol::State state;
    bool state_set = false;
    std::vector<UniqueFd> service; // of its socket; stays as it is once it is there
    std::atomic<bool> answer_lost{false};
    std::atomic<uint64_t> generation{0}; // as which the engine answers its socket

    std::mutex device_mutex; // guards both, and that attach() maps one set at a time
    std::unique_ptr<Device> device;
    bool device_failed = false;

    const std::shared_ptr<HeldMemory> held = std::make_shared<HeldMemory>();

    std::mutex canary_mutex;
    std::string canary_due; // a weight set's id

    std::mutex daemon_mutex;
    std::optional<StartedDaemon> daemon;

    std::unique_ptr<Link> link; // none in kOff
};

} // namespace berth
