// SPDX-License-Identifier: Apache-2.0
// How a Client comes by weights: shared through berthd, or privately from disk.
#include "base/log.h"
#include "engine_shim/client/client_state.h"
#include "engine_shim/client/mapped_set.h"
#include "engine_shim/client/private_load.h"

#include <fmt/format.h>

#include <numeric>

namespace berth {

namespace {

// Connections that may be lost during one attach before it gives up.
constexpr int kAttachTries = 5;
constexpr size_t kIdDigits = 16;

std::string reason_of(const Error& error) {
    if (!error.reason.empty())
        return error.reason;
    return error.code == ErrorCode::kMismatch ? "FingerprintMismatch" : "DaemonAbsent";
}

} // namespace

Result<WeightSet> Client::attach(const AttachRequest& request, const ProgressCallback& progress) {
    BERTH_ASSIGN(Device * device, state_->open_device());
    if (state_->mode == AttachMode::kOff) {
        Error why{ErrorCode::kUnavailable, "mode off", "ModeOff", 0};
        if (state_->no_daemon) {
            why = *state_->no_daemon;
            why.reason = "DaemonAbsent";
        }
        return attach_private(*device, request, progress, why);
    }
    auto shared = attach_shared(*device, request, progress);
    if (shared || !falls_back(shared.error(), request)) {
        if (shared)
            state_->set_weights("shared " + shared->id());
        return shared;
    }
    log::warn("the weights of {} are loaded privately from disk, not shared: reason={} {}",
              path_on_disk(request), reason_of(shared.error()), shared.error().message);
    auto own = attach_private(*device, request, progress, shared.error());
    if (own)
        return own;
    Error both = own.error();
    both.message = fmt::format("{}; it was tried since the shared set may not be used: {}",
                               both.message, shared.error().message);
    return fail(std::move(both));
}

// The folder that holds what was asked for; empty where nobody has said so.
std::string Client::path_on_disk(const AttachRequest& request) const {
    if (!request.path.empty())
        return request.path;
    const protocol::Welcome& now = welcome();
    if (!request.model.empty() && request.model != now.model)
        return {};
    return now.model_path.empty() ? state_->options.model_path : now.model_path;
}

bool Client::falls_back(const Error& error, const AttachRequest& request) const {
    if (state_->options.effective_fallback() != Fallback::kDisk || !request.wait ||
        !request.weight_set.empty() || path_on_disk(request).empty())
        return false;
    // An instance's memory is its berthd's, which comes back.
    bool absent = error.code == ErrorCode::kUnavailable && state_->options.instance.empty();
    return error.code == ErrorCode::kMismatch || absent;
}

// Where berthd is there it counts the bytes, or has no room for them. Null: it is not.
Result<std::shared_ptr<Holding>> Client::charge_private(const protocol::Planned& planned,
                                                        const std::string& device,
                                                        const Error& why) {
    if (state_->mode == AttachMode::kOff)
        return std::shared_ptr<Holding>();
    protocol::PrivateLoad asked;
    asked.device = device;
    asked.fingerprint = planned.fingerprint;
    asked.segment_bytes = planned.segment_bytes;
    asked.device_overhead_bytes = planned.device_overhead_bytes;
    asked.reason = reason_of(why);
    asked.message = why.message;
    bool lost = false;
    auto go = state_->link->request(asked, {}, {}, lost);
    if (!go && !lost)
        return fail(go.error());
    asked.held = true;
    return std::make_shared<Holding>(state_->held, state_->held->add(asked));
}

Result<WeightSet> Client::attach_private(Device& device, const AttachRequest& request,
                                         const ProgressCallback& progress, const Error& why) {
    if (state_->mode == AttachMode::kOff && (!request.model.empty() || !request.weight_set.empty()))
        return fail(ErrorCode::kInvalidArgument,
                    "without berthd (mode off) a weight set is named by its checkpoint's folder, "
                    "not by model or id");
    PrivateLoadRequest load;
    load.model_path = path_on_disk(request);
    if (load.model_path.empty())
        return fail(ErrorCode::kInvalidArgument,
                    "mode off needs the checkpoint's folder: set BERTH_MODEL_PATH");
    load.device = device.id();
    if (request.path.empty()) {
        load.dtype = welcome().dtype;
        load.quantization = welcome().quantization;
    }
    load.environment = filled(request.environment, device);
    load.rank = request.rank;
    load.ranks = request.ranks;
    std::shared_ptr<Holding> own; // on every way out it is let go, after the bytes
    load.may_go = [&](const protocol::Planned& planned) -> Status {
        BERTH_ASSIGN(own, charge_private(planned, device.id(), why));
        return {};
    };
    BERTH_ASSIGN(PrivateSet loaded, load_privately(load, progress));
    if (own)
        own->loader_ended();
    protocol::Attached made;
    made.weight_set = loaded.fingerprint.substr(0, kIdDigits);
    made.fingerprint = loaded.fingerprint;
    made.model_path = load.model_path;
    made.segment_bytes = loaded.segment_bytes;
    BERTH_ASSIGN(WeightSet set, mapped(device, made, std::move(loaded.fds), own));
    set.private_reason_ = reason_of(why);
    state_->set_weights(fmt::format("private ({})", set.private_reason_));
    return set;
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
        auto reply = state_->link->request(attach, {}, progress, lost);
        if (reply)
            return mapped(device, reply->attached, std::move(reply->fds));
        if (!lost)
            return fail(reply.error());
        log::info("the connection was lost during an attach, asking again");
    }
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("berthd went away {} times during one attach: look at its log", kAttachTries),
        "BerthdUnstable");
}

// The connection is the lease: a berthd that is there later is told of the mapping.
std::shared_ptr<Holding> Client::lease_of(const std::string& device,
                                          const protocol::Attached& attached) {
    protocol::PrivateLoad held;
    held.device = device;
    held.fingerprint = attached.fingerprint;
    held.segment_bytes = attached.segment_bytes;
    held.reason = "Shared";
    held.held = held.shared = true;
    return std::make_shared<Holding>(state_->held, state_->held->add(held));
}

Result<WeightSet> Client::mapped(Device& device, const protocol::Attached& attached,
                                 std::vector<UniqueFd> fds, std::shared_ptr<Holding> own) {
    WeightSet set;
    if (!own)
        set.lease_ = lease_of(device.id(), attached);
    {
        std::lock_guard lock(state_->device_mutex);
        BERTH_ASSIGN(set.mapped_, map_set(device, attached.fingerprint, attached.segment_bytes,
                                          std::move(fds), std::move(own)));
    }
    set.id_ = attached.weight_set;
    set.fingerprint_ = attached.fingerprint;
    set.model_path_ = attached.model_path;
    set.verify_canary_ = attached.verify_canary;
    if (set.verify_canary_) {
        std::lock_guard lock(state_->canary_mutex);
        state_->canary_due = set.id_;
    }
    return set;
}

Status Client::report_canary(const WeightSet& weights, const std::string& digest) {
    const ManifestCanary canary = weights.canary();
    if (!canary)
        return fail(
            ErrorCode::kNotFound,
            fmt::format("weight set {} has no canary: its publisher left none", weights.id()),
            "NoCanary");
    protocol::Canary report;
    report.weight_set = weights.id();
    report.digest = digest;
    if (state_->link)
        state_->link->post(report);
    if (canary.digest == digest) {
        std::lock_guard lock(state_->canary_mutex);
        if (state_->canary_due == weights.id())
            state_->canary_due.clear();
        return {};
    }
    Error mismatch{ErrorCode::kMismatch,
                   fmt::format("the canary of weight set {} gave {}, its publisher had {}",
                               weights.id(), digest, canary.digest),
                   "CanaryMismatch", 0};
    set_state(protocol::EngineState::kFailed, {}, mismatch.reason, mismatch.message);
    return fail(std::move(mismatch));
}

std::string Client::canary_due() const {
    std::lock_guard lock(state_->canary_mutex);
    return state_->canary_due;
}

} // namespace berth
