// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/client.h"

#include "base/log.h"
#include "engine_shim/client/client_state.h"
#include "engine_shim/client/mapped_set.h"
#include "engine_shim/client/private_load.h"

#include <fmt/format.h>

namespace berth {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Connections that may be lost during one attach before it gives up.
constexpr int kAttachTries = 5;
constexpr size_t kIdDigits = 16;

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

} // namespace

Client::Client() = default;
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::connect(ClientOptions options) {
    if (options.socket.empty())
        options.socket = default_socket();
    auto client = std::unique_ptr<Client>(new Client());
    client->state_ = std::make_unique<State>(std::move(options));
    State& state = *client->state_;
    if (state.options.mode == AttachMode::kOff) {
        protocol::Welcome made_up;
        made_up.model_path = state.options.model_path;
        made_up.device = state.options.device.empty() ? "host-0" : state.options.device;
        made_up.device_kind = made_up.device.starts_with("host") ? "host" : "cuda";
        state.set_welcome(std::move(made_up));
        return client;
    }
    state.link = std::make_unique<Link>(state.options.socket, state);
    BERTH_TRY(state.first_connection());
    return client;
}

const protocol::Welcome& Client::welcome() const {
    return *state_->welcome.load();
}

AttachMode Client::mode() const {
    return state_->options.mode;
}

Device& Client::device() {
    (void)state_->open_device();
    std::lock_guard lock(state_->device_mutex);
    return *state_->device;
}

Result<WeightSet> Client::attach(const AttachRequest& request, const ProgressCallback& progress) {
    BERTH_ASSIGN(Device * device, state_->open_device());
    return state_->options.mode == AttachMode::kOff ? attach_private(*device, request, progress)
                                                    : attach_shared(*device, request, progress);
}

Result<WeightSet> Client::attach_private(Device& device, const AttachRequest& request,
                                         const ProgressCallback& progress) {
    if (!request.model.empty() || !request.weight_set.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "without berthd (mode off) a weight set is named by its checkpoint's folder, "
                    "not by model or id");
    std::string path = request.path.empty() ? state_->options.model_path : request.path;
    if (path.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "mode off needs the checkpoint's folder: set BERTH_MODEL_PATH");
    BERTH_ASSIGN(PrivateSet loaded,
                 load_privately(path, device.id(), filled(request.environment, device), progress));
    return mapped(device, loaded.fingerprint.substr(0, kIdDigits), loaded.fingerprint, path,
                  loaded.segment_bytes, std::move(loaded.fds));
}

Result<WeightSet> Client::attach_shared(Device& device, const AttachRequest& request,
                                        const ProgressCallback& progress) {
    protocol::Attach attach;
    attach.model = request.model;
    attach.path = request.path;
    attach.weight_set = request.weight_set;
    // A guest has no model of its own; its checkpoint may have been named when it connected.
    if (attach.model.empty() && attach.path.empty() && attach.weight_set.empty() &&
        welcome().instance.empty())
        attach.path = state_->options.model_path;
    attach.device = device.id();
    attach.environment = filled(request.environment, device);
    attach.wait = request.wait;
    for (int left = kAttachTries; left > 0; --left) {
        BERTH_TRY(state_->link->wait_up(std::chrono::steady_clock::now() +
                                        state_->options.connect_timeout));
        bool lost = false;
        auto reply = state_->link->request(attach, progress, lost);
        if (reply)
            return mapped(device, reply->attached.weight_set, reply->attached.fingerprint,
                          reply->attached.model_path, reply->attached.segment_bytes,
                          std::move(reply->fds));
        if (!lost)
            return fail(reply.error());
        log::info("the connection was lost during an attach, asking again");
    }
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("berthd went away {} times during one attach: look at its log", kAttachTries),
        "BerthdUnstable");
}

Result<WeightSet> Client::mapped(Device& device, std::string id, std::string fingerprint,
                                 std::string model_path, const std::vector<uint64_t>& segment_bytes,
                                 std::vector<UniqueFd> fds) {
    WeightSet set;
    {
        std::lock_guard lock(state_->device_mutex);
        BERTH_ASSIGN(set.mapped_, map_set(device, fingerprint, segment_bytes, std::move(fds)));
    }
    set.id_ = std::move(id);
    set.fingerprint_ = std::move(fingerprint);
    set.model_path_ = std::move(model_path);
    return set;
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
    return state_->commands.pressing() || state_->gate.closed();
}

bool Client::yield_here() {
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
        if (!state_->gate.closed())
            return true;
        if (!counted)
            state_->counters.gate_pauses.fetch_add(1);
        counted = true;
        (void)state_->gate.wait(milliseconds(100));
    }
}

void Client::raise_gate() {
    state_->gate.raise();
}

void Client::lower_gate() {
    state_->gate.lower();
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

Client::Counters& Client::counters() {
    return state_->counters;
}

void Client::report_now() {
    if (state_->link)
        state_->link->report_soon();
}

} // namespace berth
