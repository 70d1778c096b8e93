// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/client_state.h"

#include "base/log.h"
#include "engine_shim/client/failed_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <unistd.h>

namespace berth {

namespace {

// A berthd that found another one running ends at once; that other one is then about to listen.
constexpr Nanoseconds kOtherDaemon = std::chrono::seconds(2);

} // namespace

Client::State::State(ClientOptions given)
    : options(std::move(given)), mode(options.mode),
      commands([this](const protocol::CommandDone& done, uint64_t epoch) { answer(done, epoch); }) {
}

protocol::Hello Client::State::hello() {
    protocol::Hello hello;
    hello.instance = options.instance;
    hello.token = options.token;
    hello.program = options.program;
    hello.pid = ::getpid();
    hello.grant_bytes = counters.grant_bytes.load();
    hello.held = commands.held();
    hello.generation = generation.load();
    std::lock_guard lock(state_mutex);
    if (state_set)
        hello.state = to_string(state.state);
    hello.endpoint = state.endpoint;
    hello.identity = state.identity;
    hello.canary_tokens = state.canary_tokens;
    return hello;
}

// The originals: to close a copy would end this process's lock on the journal.
std::vector<int> Client::State::hello_fds() {
    std::lock_guard lock(state_mutex);
    std::vector<int> all;
    for (const UniqueFd& one : service)
        all.push_back(one.get());
    return all;
}

protocol::Report Client::State::report() {
    protocol::Report report;
    report.requests_running = counters.requests_running.load();
    report.requests_waiting = counters.requests_waiting.load();
    report.requests_done = counters.requests_done.load();
    report.tokens_done = counters.tokens_done.load();
    report.steps_done = counters.steps_done.load();
    report.gate_pauses = counters.gate_pauses.load();
    report.grant_bytes = counters.grant_bytes.load();
    if (const int64_t began = counters.step_began_ns.load(); began != 0) {
        const Nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
        report.step_ms =
            static_cast<uint64_t>(std::max<int64_t>((now.count() - began) / 1'000'000, 1));
    }
    report.short_of_memory = counters.short_of_memory.load();
    report.batch_done = counters.batch_done.load();
    report.batch_total = counters.batch_total.load();
    report.ttft_us = counters.ttft.percentiles();
    report.tpot_us = counters.tpot.percentiles();
    return report;
}

Status Client::State::on_welcome(protocol::Welcome next, UniqueFd gate_fd) {
    auto taken = gate.take(next, std::move(gate_fd));
    if (!taken && welcome.load() == nullptr)
        return fail_in("the gate page that berthd sent", taken.error());
    if (!taken)
        log::warn("ignoring the gate page that berthd sent, the earlier one stays: {}",
                  taken.error().message);
    set_welcome(std::move(next));
    return {};
}

void Client::State::set_welcome(protocol::Welcome next) {
    next.id = 0;
    std::lock_guard lock(welcome_mutex);
    if (!welcomes.empty() && encode(*welcomes.back()) == encode(next))
        return;
    welcomes.push_back(std::make_unique<protocol::Welcome>(std::move(next)));
    welcome.store(welcomes.back().get());
}

bool Client::State::gate_stops() {
    if (!gate.closed()) {
        meter.open();
        return false;
    }
    return !meter.runs_on(gate.share(), ShareMeter::Clock::now());
}

void Client::State::on_up(uint64_t epoch) {
    commands.forget_before(epoch);
    if (epoch > 1)
        log::info("connected to berthd again, socket={}", options.socket);
    if (epoch > 1)
        held->announce();
    std::lock_guard lock(state_mutex);
    if (state_set)
        announce_locked();
}

// A private set is told at once: berthd shows it while the engine still starts.
void Client::State::set_weights(const std::string& weights) {
    std::lock_guard lock(state_mutex);
    if (state.weights == weights)
        return;
    state.weights = weights;
    if (weights.starts_with("private"))
        state_set = true;
    if (state_set)
        announce_locked();
}

void Client::State::announce_locked() {
    state.grant_bytes = counters.grant_bytes.load();
    state.held = commands.held();
    if (link)
        link->post(state);
}

void Client::State::on_command(protocol::Command command, uint64_t epoch) {
    commands.push(std::move(command), epoch);
    gate.wake();
}

void Client::State::on_tick() {
    gate.retry();
    std::lock_guard lock(daemon_mutex);
    if (daemon && daemon->process)
        (void)daemon->process.try_wait(); // reaps it, if it is the one that ended
}

void Client::State::answer(const protocol::CommandDone& done, uint64_t epoch) {
    if (link && !link->post(done, epoch))
        answer_lost.store(true);
}

void Client::State::after_answers() {
    if (answer_lost.exchange(false)) {
        std::lock_guard lock(state_mutex);
        announce_locked();
    }
    if (link)
        link->report_soon();
}

Status Client::State::first_connection() {
    Deadline deadline = std::chrono::steady_clock::now() + options.connect_timeout;
    BERTH_TRY(link->start());
    uint64_t seen = 0;
    while (!link->wait_attempt(deadline, seen)) {
        if (auto attempt = link->attempt())
            BERTH_TRY(check_attempt(*attempt, deadline));
        if (std::chrono::steady_clock::now() >= deadline)
            break;
    }
    if (Status up = link->wait_up(deadline); !up) {
        Error error = up.error();
        std::lock_guard lock(daemon_mutex);
        if (daemon)
            error.message += fmt::format(
                "; berthd was started with {} and its log is {}: its spec.socket must be this path",
                daemon->config, daemon->log_path);
        return fail(error);
    }
    return {};
}

Status Client::State::check_attempt(const Link::Attempt& attempt, Deadline& deadline) {
    if (attempt.refused)
        return fail(attempt.error);
    bool absent = attempt.error.source == ENOENT || attempt.error.source == ECONNREFUSED;
    if (!absent && attempt.error.code != ErrorCode::kUnavailable)
        return fail(attempt.error);
    if (!absent)
        return {};
    if (options.mode == AttachMode::kClient && options.instance.empty())
        return fail_in("no berthd listens; start it, or choose BERTH_MODE=daemon or off",
                       attempt.error);
    if (options.mode != AttachMode::kDaemon)
        return {};
    std::lock_guard lock(daemon_mutex);
    if (!daemon) {
        BERTH_ASSIGN(daemon, start_daemon(options.socket));
        return {};
    }
    if (!daemon->process)
        return {};
    if (auto status = daemon->process.try_wait()) {
        log::warn("the berthd that was started has ended ({}), log={}", describe_exit(*status),
                  daemon->log_path);
        daemon->process = Process();
        deadline = std::min(deadline, std::chrono::steady_clock::now() + kOtherDaemon);
    }
    return {};
}

Result<Device*> Client::State::open_device() {
    std::lock_guard lock(device_mutex);
    if (device && !device_failed)
        return device.get();
    const protocol::Welcome& now = *welcome.load();
    std::string id = options.device;
    if (!now.instance.empty() || id.empty())
        id = now.device;
    auto opened = berth::open_device(id);
    if (!opened) {
        // Kept if it is there already: somebody may hold a reference to it.
        if (!device)
            device = failed_device(id, opened.error());
        device_failed = true;
        return fail(opened.error());
    }
    if (device_failed)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("device {} could not be opened earlier and can be now: connect "
                                "again",
                                id));
    device = std::move(*opened);
    return device.get();
}

} // namespace berth
