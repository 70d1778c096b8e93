// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "engine_shim/client/client_state.h"
#include "engine_shim/client/publication_state.h"

#include <fmt/format.h>

namespace berth {

namespace {

// Publishers of the same set that may die before their turn comes to this one.
constexpr int kPublishTries = 64;
constexpr size_t kIdDigits = 16;

} // namespace

Result<WeightSet> Client::attach_published(Device& device, const protocol::Publish& asked,
                                           const ManifestParts* declared,
                                           const ProgressCallback& progress) {
    AttachRequest request;
    request.weight_set = asked.fingerprint.substr(0, kIdDigits);
    BERTH_ASSIGN(WeightSet set, attach_shared(device, request, progress));
    if (set.fingerprint() != asked.fingerprint)
        return fail(ErrorCode::kMismatch,
                    fmt::format("weight set {} has the fingerprint {}, wanted was {}", set.id(),
                                set.fingerprint(), asked.fingerprint));
    const std::string other =
        declared != nullptr ? declared_difference(*declared, set.manifest()) : std::string();
    if (!other.empty())
        return fail(ErrorCode::kMismatch,
                    fmt::format("weight set {} was published from the same inputs and is another "
                                "one: {}; raise the producer's version where it makes other "
                                "tensors",
                                set.id(), other),
                    "DeclaredOther");
    return set;
}

Result<PublishOutcome> Client::publish(const PublishRequest& request,
                                       const ProgressCallback& progress) {
    if (state_->mode == AttachMode::kOff)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("nothing can be published without berthd{}{}",
                                state_->no_daemon ? ": " : " (mode off)",
                                state_->no_daemon ? state_->no_daemon->message : ""),
                    "NoDaemon");
    BERTH_ASSIGN(Device * device, state_->open_device());
    auto making = std::make_unique<Publication::State>(*this, *state_, *device);
    const bool declares = !request.find_only || !request.tensors.empty();
    if (declares) {
        BERTH_ASSIGN(making->plan,
                     plan_publication(request, device->capabilities().granularity_bytes));
    }
    BERTH_ASSIGN(PublishFingerprint fingerprint,
                 publish_fingerprint(request, filled(request.environment, *device)));
    making->plan.parts.fingerprint_json = fingerprint.document;
    making->id = fingerprint.sha256.substr(0, kIdDigits);
    protocol::Publish& asked = making->asked;
    asked.device = device->id();
    asked.model = request.model;
    asked.path = request.path;
    asked.fingerprint_json = fingerprint.document;
    asked.fingerprint = fingerprint.sha256;
    asked.segment_bytes = making->plan.parts.segment_bytes;
    asked.tensors = making->plan.parts.entries.size();
    asked.find_only = request.find_only;
    making->sealed = true; // there is nothing to give back yet
    for (int left = kPublishTries; left > 0; --left) {
        BERTH_TRY(state_->link->wait_up(std::chrono::steady_clock::now() +
                                        state_->options.connect_timeout));
        bool lost = false;
        auto go = state_->link->request(asked, {}, progress, lost);
        PublishOutcome outcome;
        if (go) {
            making->sealed = false;
            protocol::Publish again = asked;
            again.id = 0;
            again.held = true;
            making->held = state_->held->add(again);
            outcome.publication.reset(new Publication(std::move(making)));
            BERTH_TRY(outcome.publication->state_->create_segments());
            return outcome;
        }
        if (lost)
            continue;
        if (go.error().code != ErrorCode::kAlreadyExists)
            return fail(go.error());
        log::info("weight set {}: {}", making->id, go.error().message);
        auto set =
            attach_published(*device, asked, declares ? &making->plan.parts : nullptr, progress);
        if (set) {
            state_->set_weights("shared " + set->id());
            outcome.resident = std::move(*set);
            return outcome;
        }
        // The other one did not make it: the next turn may be this one's.
        const bool again = set.error().code == ErrorCode::kUnavailable ||
                           set.error().code == ErrorCode::kNotFound ||
                           set.error().code == ErrorCode::kCorrupt;
        if (!again)
            return fail(set.error());
    }
    return fail(ErrorCode::kUnavailable,
                fmt::format("weight set {}: {} publishers began it and none sealed it", making->id,
                            kPublishTries),
                "PublishersDie");
}

Result<std::unique_ptr<StateCopies>> Client::copy_states(const WeightSet& weights) {
    BERTH_ASSIGN(Device * device, state_->open_device());
    std::lock_guard lock(state_->device_mutex);
    return StateCopies::make(*device, weights);
}

} // namespace berth
