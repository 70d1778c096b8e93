// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/client.h"

#include "base/log.h"
#include "engine_shim/client/client_state.h"

#include <fmt/format.h>

namespace berth {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

protocol::Welcome made_up_welcome(const ClientOptions& options) {
    protocol::Welcome made_up;
    made_up.model_path = options.model_path;
    made_up.device = options.device.empty() ? "host-0" : options.device;
    made_up.device_kind = made_up.device.starts_with("host") ? "host" : "cuda";
    return made_up;
}

// Whether a berthd that cannot be had may be done without. What the caller got wrong stays wrong.
bool may_do_without(const ClientOptions& options, const Error& error) {
    return options.effective_fallback() == Fallback::kDisk && options.instance.empty() &&
           error.code != ErrorCode::kPermissionDenied && error.code != ErrorCode::kInvalidArgument;
}

uint64_t microseconds(Nanoseconds one) {
    return static_cast<uint64_t>(one.count()) / 1000;
}

} // namespace

protocol::Environment filled(protocol::Environment environment, const Device& device) {
    const DeviceCapabilities& facts = device.capabilities();
    auto fill = [](std::string& field, std::string_view from) {
        if (field.empty())
            field = from;
    };
    fill(environment.device_kind, to_string(facts.kind));
    fill(environment.compute_capability, facts.compute_capability);
    fill(environment.cuda_version, facts.driver_version);
    fill(environment.layout, "berth-1");
    fill(environment.torch_version, "any");
    return environment;
}

Client::Client() = default;
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
    if (options.socket.empty())
        options.socket = default_socket();
    auto client = std::unique_ptr<Client>(new Client());
    client->state_ = std::make_unique<State>(std::move(options));
    State& state = *client->state_;
    if (state.mode == AttachMode::kOff) {
        state.set_welcome(made_up_welcome(state.options));
        return client;
    }
    state.link = std::make_unique<Link>(state.options.socket, state);
    state.held->use(state.link.get());
    Status connected = state.first_connection();
    if (connected)
        return client;
    if (!may_do_without(state.options, connected.error()))
        return fail(connected.error());
    log::warn("no berthd can be used, weights will be loaded privately from disk: {}",
              connected.error().message);
    state.link->stop();
    state.no_daemon = connected.error();
    state.mode = AttachMode::kOff;
    state.set_welcome(made_up_welcome(state.options));
    return client;
}

const protocol::Welcome& Client::welcome() const {
    return *state_->welcome.load();
}

AttachMode Client::mode() const {
    return state_->mode;
}

Device& Client::device() {
    (void)state_->open_device();
    std::lock_guard lock(state_->device_mutex);
    return *state_->device;
}

Result<std::unique_ptr<GrantArena>> Client::create_grant(uint64_t bytes_max) {
    BERTH_ASSIGN(Device * device, state_->open_device());
    uint64_t allowed = welcome().grant_bytes_max;
    if (mode() != AttachMode::kOff) {
        if (allowed == 0)
            return fail(ErrorCode::kFailedPrecondition,
                        "berthd gave this process no grant: guests get none, an instance gets "
                        "what its policy's memory says");
        if (bytes_max > allowed)
            return fail(ErrorCode::kResourceExhausted,
                        fmt::format("a grant of {} was asked for, berthd gives at most {}",
                                    format_bytes(bytes_max), format_bytes(allowed)));
        if (bytes_max == 0)
            bytes_max = allowed;
    } else if (bytes_max == 0) {
        return fail(ErrorCode::kInvalidArgument,
                    "without berthd the size of a grant must be given");
    }
    std::lock_guard lock(state_->device_mutex);
    return device->create_grant(bytes_max);
}

std::optional<protocol::Command> Client::next_command() {
    return state_->commands.next();
}

void Client::complete(protocol::CommandDone done) {
    if (!state_->commands.complete(done))
        return log::warn("command {} is not open, ignoring its answer", done.id);
    state_->after_answers();
}

bool Client::paused() const {
    return state_->commands.paused();
}

void Client::wait(Nanoseconds timeout) {
    state_->commands.wait(timeout);
}

void Client::notify() {
    state_->commands.notify();
}

bool Client::must_yield() const {
    return state_->commands.pressing() || state_->gate_stops();
}

bool Client::yield_here() {
    const bool steps = state_->counters.step_began_ns.exchange(0) != 0;
    const bool goes_on = await_turn();
    if (steps && goes_on)
        step_begins();
    return goes_on;
}

bool Client::await_turn() {
    bool counted = false;
    for (;;) {
        bool waiting = state_->commands.pressing();
        auto outlook = state_->commands.settle(state_->counters.grant_bytes.load());
        if (waiting)
            state_->after_answers();
        if (outlook == CommandQueue::Outlook::kOther)
            return false;
        if (outlook == CommandQueue::Outlook::kPaused) {
            state_->commands.wait_for_change(seconds(10));
            continue;
        }
        if (!state_->gate.closed()) {
            state_->meter.open();
            return true;
        }
        const uint32_t share = state_->gate.share();
        const Nanoseconds rest = state_->meter.rest(share, ShareMeter::Clock::now());
        if (rest.count() == 0)
            return true;
        if (!counted)
            state_->counters.gate_pauses.fetch_add(1);
        counted = true;
        (void)state_->gate.wait(std::min<Nanoseconds>(rest, milliseconds(100)));
    }
}

Nanoseconds Client::wait_at_gate(Nanoseconds longest) {
    const auto began = std::chrono::steady_clock::now();
    const auto waited = [&] { return Nanoseconds(std::chrono::steady_clock::now() - began); };
    if (!state_->gate_stops())
        return Nanoseconds(0);
    while (state_->gate.closed() && !state_->commands.has_next() && waited() < longest) {
        const Nanoseconds rest = state_->meter.rest(state_->gate.share(), ShareMeter::Clock::now());
        if (rest.count() == 0)
            break;
        (void)state_->gate.wait(
            std::min<Nanoseconds>({rest, longest - waited(), milliseconds(100)}));
    }
    if (waited() >= longest)
        state_->meter.open(); // what follows without a look is not its share's
    return waited();
}

const std::atomic<uint32_t>* Client::gate_word() const {
    return state_->gate.changes();
}

void Client::raise_gate() {
    state_->gate.raise();
}

void Client::lower_gate() {
    state_->gate.lower();
}

Nanoseconds Client::between_steps(Nanoseconds step) {
    TurnBook& turns = state_->turns;
    Nanoseconds turn = turns.after(step, state_->gate.share_to_give());
    if (const Nanoseconds most = state_->slack.after(step); state_->gate.spares_by_targets())
        turn = std::min(turn, most);
    if (turn.count() == 0)
        return turn;
    if (!state_->gate.begin_turn()) {
        turns.nobody_waited();
        return Nanoseconds(0);
    }
    const auto begin = std::chrono::steady_clock::now();
    state_->commands.wait(turn);
    state_->gate.end_turn();
    const Nanoseconds slept = std::chrono::steady_clock::now() - begin;
    turns.given(slept);
    return slept;
}

void Client::note_progress(uint64_t later, Nanoseconds since_first) {
    if (const protocol::Welcome* now = state_->welcome.load(); now != nullptr)
        state_->slack.answer(std::chrono::microseconds(now->slo_tpot_us), later, since_first);
}

void Client::step_begins() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    state_->counters.step_began_ns.store(Nanoseconds(now).count(), std::memory_order_relaxed);
}

void Client::step_ends() {
    const int64_t began = state_->counters.step_began_ns.exchange(0, std::memory_order_relaxed);
    if (began != 0)
        state_->slack.step(std::chrono::steady_clock::now().time_since_epoch() -
                           Nanoseconds(began));
}

void Client::stand_by() {
    state_->commands.set_standby(true);
}

void Client::serves_as(uint64_t generation) {
    state_->generation.store(generation);
    state_->commands.set_standby(false);
    std::lock_guard lock(state_->state_mutex);
    if (state_->state_set)
        state_->announce_locked();
}

void Client::set_state(protocol::EngineState state, std::string endpoint, std::string reason,
                       std::string message) {
    std::lock_guard lock(state_->state_mutex);
    state_->state.state = state;
    if (!endpoint.empty())
        state_->state.endpoint = std::move(endpoint);
    state_->state.reason = std::move(reason);
    state_->state.message = std::move(message);
    state_->state_set = true;
    state_->announce_locked();
}

void Client::set_phase(const std::string& name, double milliseconds) {
    std::lock_guard lock(state_->state_mutex);
    state_->state.phases[name] = milliseconds;
    if (state_->state_set)
        state_->announce_locked();
}

void Client::set_grant_least(uint64_t bytes) {
    std::lock_guard lock(state_->state_mutex);
    state_->state.grant_bytes_least = bytes;
}

void Client::set_identity(const std::string& identity) {
    std::lock_guard lock(state_->state_mutex);
    state_->state.identity = identity;
}
void Client::set_canary_tokens(const std::vector<uint64_t>& tokens) {
    std::lock_guard lock(state_->state_mutex);
    state_->state.canary_tokens = tokens;
}

void Client::hold_socket(std::vector<UniqueFd> descriptors) {
    std::lock_guard lock(state_->state_mutex);
    state_->service = std::move(descriptors);
}

void Client::note_latency(Nanoseconds ttft, Nanoseconds tpot) {
    state_->counters.ttft.add(microseconds(ttft));
    if (tpot.count() > 0)
        state_->counters.tpot.add(microseconds(tpot));
    state_->move_spare([&](SpareTime& spare, const SpareTime::Targets& targets) {
        return spare.after(targets, ttft, tpot);
    });
}

void Client::note_first_token(Nanoseconds ttft) {
    state_->counters.ttft.add(microseconds(ttft));
    note_under_way(ttft, Nanoseconds(0));
}

void Client::note_pace(Nanoseconds tpot) {
    note_under_way(Nanoseconds(0), tpot);
}

void Client::note_awaited(Nanoseconds longest) {
    if (longest.count() > 0)
        note_under_way(longest, Nanoseconds(0));
}

void Client::note_under_way(Nanoseconds ttft, Nanoseconds tpot) {
    state_->move_spare([&](SpareTime& spare, const SpareTime::Targets& targets) {
        return spare.under_way(targets, ttft, tpot, SpareTime::Clock::now());
    });
}

void Client::note_answered(Nanoseconds ttft, Nanoseconds tpot) {
    if (tpot.count() > 0)
        state_->counters.tpot.add(microseconds(tpot));
    state_->move_spare([&](SpareTime& spare, const SpareTime::Targets& targets) {
        return spare.after_told(targets, ttft, tpot);
    });
}

Client::Counters& Client::counters() {
    return state_->counters;
}

void Client::report_now() {
    if (state_->link)
        state_->link->report_soon();
}

} // namespace berth
