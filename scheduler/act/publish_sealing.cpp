// SPDX-License-Identifier: Apache-2.0
// What is sealed is taken over, what is asked about is answered; publish_desk.cpp has the rest.
#include "base/log.h"
#include "cache/weights/fingerprint.h"
#include "cache/weights/manifest.h"
#include "scheduler/act/publish_desk.h"
#include "scheduler/act/sealed_segment.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

void PublishDesk::find_only(Run run, const node::PublishRequested& event) {
    const auto& loads = context_.state().loads;
    auto key = node::published_key(event.set, event.device);
    bool under_way = std::any_of(loads.begin(), loads.end(), [&](const auto& entry) {
        const node::Load& load = entry.second;
        return load.key == key && (load.state != node::Load::State::kEnding || load.sealed);
    });
    if (!under_way && !context_.state().weights.contains({event.device, event.set}))
        return fail_request(run, nearest_differences(run.asked));
    fail_request(run, Error{ErrorCode::kAlreadyExists,
                            "weight set " + event.set.value + ": attach to it",
                            under_way ? "BeingPublished" : "AlreadyPublished", 0});
}

// So that one who finds nothing learns what differs from the closest that is there.
Error PublishDesk::nearest_differences(const protocol::Publish& asked) const {
    Error error{ErrorCode::kNotFound, "no set with this fingerprint was published", "NotResident",
                0};
    const ResidentSet* nearest =
        context_.catalogue.nearest(asked.model, asked.path, asked.fingerprint_json);
    if (nearest == nullptr)
        return error;
    auto differences = compare(nearest->fingerprint_json, asked.fingerprint_json);
    if (differences && !differences->empty())
        error.message += fmt::format("; weight set {} of the same model differs in:\n{}",
                                     nearest->id, difference_table(*differences));
    return error;
}

Status PublishDesk::check_sealed(const Run& run, const protocol::Sealed& sealed,
                                 const std::vector<UniqueFd>& fds) const {
    const protocol::Publish& declared = run.asked;
    if (sealed.segment_bytes != declared.segment_bytes)
        return malformed(fmt::format("segments of {} bytes were sealed, {} were declared",
                                     fmt::join(sealed.segment_bytes, " + "),
                                     fmt::join(declared.segment_bytes, " + ")));
    if (fds.size() != declared.segment_bytes.size() + 1)
        return malformed(fmt::format("{} descriptors came for a manifest and {} segments",
                                     fds.size(), declared.segment_bytes.size()));
    auto environment = context_.environments.find(node::DeviceId(declared.device));
    if (environment != context_.environments.end() && environment->second.device_kind == "host")
        for (size_t i = 0; i < declared.segment_bytes.size(); ++i)
            BERTH_TRY(check_segment(fds[i + 1], i, declared.segment_bytes[i]));
    BERTH_ASSIGN(Manifest manifest, Manifest::open(fds.front(), declared.segment_bytes));
    if (manifest.size() != declared.tensors)
        return malformed(fmt::format("{} tensors were sealed, {} were declared", manifest.size(),
                                     declared.tensors));
    if (manifest.fingerprint() != declared.fingerprint ||
        manifest.fingerprint_json() != declared.fingerprint_json)
        return malformed("the manifest has another fingerprint than was declared");
    return {};
}

void PublishDesk::sealed(SessionId session, const protocol::Sealed& sealed,
                         std::vector<UniqueFd> fds) {
    auto at = std::find_if(runs_.begin(), runs_.end(), [&](const auto& entry) {
        const Run& run = entry.second;
        return run.who.session == session && run.is_set() && (run.went || run.asked.held) &&
               !run.over && !run.sealed && run.asked.fingerprint == sealed.fingerprint;
    });
    if (at == runs_.end()) {
        protocol::Failed failed;
        failed.id = sealed.id;
        failed.error = Error{ErrorCode::kFailedPrecondition,
                             "no publication of this fingerprint is open on this connection: "
                             "publish first, fill after go",
                             "NotPublishing", 0};
        server_->send(session, failed);
        return;
    }
    Run& run = at->second;
    if (!run.went) {
        run.early = EarlySeal{sealed, std::move(fds)};
        return;
    }
    run.request = sealed.id;
    if (Status sound = check_sealed(run, sealed, fds); !sound) {
        fail_request(run, sound.error());
        run.over = true;
        context_.post(node::LoadFailed{*run.load, sound.error()});
        return;
    }
    HandedSet set = handed_set(sealed, std::move(fds));
    set.fingerprint_json = run.asked.fingerprint_json;
    set.path = run.asked.path;
    set.model = run.asked.model;
    run.sealed = std::move(set);
    context_.post(node::LoadSealed{*run.load, sealed.fingerprint, set_of(sealed.fingerprint),
                                   sum(sealed.segment_bytes)});
}

std::optional<HandedSet> PublishDesk::take_sealed(node::LoadId load) {
    auto at = find(load);
    if (at == runs_.end())
        return std::nullopt;
    at->second.over = at->second.handed = true; // whatever becomes of its publisher
    return std::exchange(at->second.sealed, std::nullopt);
}

void PublishDesk::kept(node::LoadId load) {
    auto at = find(load);
    if (at == runs_.end())
        return;
    Run run = std::move(at->second);
    runs_.erase(at);
    context_.post(node::LoaderExited{load, "sealed"});
    ++context_.metrics.sets_published;
    const ResidentSet* set =
        context_.catalogue.find(set_of(run.asked.fingerprint).value, run.asked.device);
    if (run.who.session != 0 && set != nullptr)
        attach_.hand_out(run.who, run.request, *set);
}

void PublishDesk::canary(const Attacher& who, const protocol::Canary& canary) {
    const ResidentSet* set = context_.catalogue.find(canary.weight_set);
    std::string expected = set != nullptr ? attach_.canary_of(*set) : std::string();
    if (expected.empty())
        return log::info("{} reports a canary of weight set {}, which has none, ignoring",
                         who.holder, canary.weight_set);
    bool met = expected == canary.digest;
    ++context_.metrics.canaries[met ? "met" : "mismatch"];
    if (!who.instance.empty())
        return context_.post(node::CanaryReported{who.instance, node::WeightSetId(set->id),
                                                  std::move(expected), canary.digest});
    if (!met)
        context_.note(true, "weights/" + set->id, "CanaryMismatch",
                      fmt::format("the canary gave {} in {}, its publisher had {}", canary.digest,
                                  who.holder, expected));
}

} // namespace berth
