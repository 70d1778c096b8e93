// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/publish_desk.h"

#include "base/log.h"
#include "cache/weights/fingerprint.h"
#include "cache/weights/manifest.h"
#include "scheduler/act/sealed_segment.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

constexpr size_t kIdDigits = 16;

// What does not fit a number fits no device: the node refuses it.
uint64_t sum(const std::vector<uint64_t>& parts, uint64_t more = 0) {
    for (uint64_t part : parts)
        if (__builtin_add_overflow(more, part, &more))
            return UINT64_MAX;
    return more;
}

node::WeightSetId set_of(const std::string& fingerprint) {
    return node::WeightSetId(fingerprint.substr(0, kIdDigits));
}

} // namespace

PublishDesk::Runs::iterator PublishDesk::find(node::LoadId load) {
    return std::find_if(runs_.begin(), runs_.end(),
                        [&](const auto& entry) { return entry.second.load == load; });
}

void PublishDesk::fail_request(Run& run, Error error) {
    if (run.who.session == 0 || run.request == 0)
        return;
    protocol::Failed failed;
    failed.id = std::exchange(run.request, 0);
    failed.error = std::move(error);
    server_->send(run.who.session, failed);
}

void PublishDesk::watch_process(uint64_t number, Run& run) {
    auto id = process_id(run.pid);
    auto process = id ? Process::adopt(*id) : fail(id.error());
    if (!process)
        return log::warn("the process of {} cannot be watched ({}): its end is its session's",
                         run.who.holder, process.error().message);
    auto watch = FdWatch::open(context_.io, process->pidfd(), [this, number] {
        auto at = runs_.find(number);
        if (at == runs_.end())
            return;
        at->second.process_ended = true;
        // Its last words may be unread yet: they are, once the session has ended too.
        if (at->second.who.session == 0)
            end(at, false, {});
    });
    if (!watch)
        return log::warn("the process of {} cannot be watched: {}", run.who.holder,
                         watch.error().message);
    run.process = std::move(*process);
    run.watch = std::move(*watch);
    run.watched = true;
}

void PublishDesk::begin(Run run, const node::PublishRequested& event) {
    if (runs_.size() >= kRunsMax)
        return fail_request(run, Error{ErrorCode::kResourceExhausted,
                                       fmt::format("{} publications and private loads are under "
                                                   "way already",
                                                   kRunsMax),
                                       "TooManyPublications", 0});
    if (event.held)
        end_announced_before(run);
    node::PublishRequested numbered = event;
    numbered.publication = next_++;
    auto at = runs_.emplace(numbered.publication, std::move(run)).first;
    watch_process(numbered.publication, at->second);
    context_.post(std::move(numbered));
}

// An engine that comes back says again what it holds: what its lost connection had said is that.
void PublishDesk::end_announced_before(const Run& again) {
    for (auto next = runs_.begin(); next != runs_.end();) {
        auto at = next++;
        const Run& run = at->second;
        if (run.pid == again.pid && run.who.session == 0 && run.is_private == again.is_private &&
            run.asked.fingerprint == again.asked.fingerprint)
            end(at, false, {});
    }
}

void PublishDesk::publish(const Attacher& who, int pid, const protocol::Publish& asked) {
    Run run;
    run.who = who;
    run.pid = pid;
    run.request = asked.id;
    run.asked = asked;
    if (asked.device.empty() && !context_.device_order.empty())
        run.asked.device = context_.device_order.front().value;
    auto hash = hash_of_document(asked.fingerprint_json);
    if (!hash || *hash != asked.fingerprint)
        return fail_request(run, Error{ErrorCode::kInvalidArgument,
                                       hash ? "the fingerprint is not its document's SHA-256"
                                            : hash.error().message,
                                       "BadFingerprint", 0});
    if (asked.segment_bytes.empty() && !asked.find_only)
        return fail_request(run, Error{ErrorCode::kInvalidArgument,
                                       "a publication of no segment was asked for", "Empty", 0});
    node::PublishRequested event;
    event.set = set_of(asked.fingerprint);
    event.device = node::DeviceId(run.asked.device);
    if (asked.find_only) {
        const auto& sets = context_.state().weights;
        const auto& loads = context_.state().loads;
        auto key = node::published_key(event.set, event.device);
        bool under_way = std::any_of(loads.begin(), loads.end(), [&](const auto& entry) {
            const node::Load& load = entry.second;
            return load.key == key && (load.state != node::Load::State::kEnding || load.sealed);
        });
        if (!under_way && !sets.contains({event.device, event.set}))
            return fail_request(run, nearest_differences(asked));
        return fail_request(run, Error{ErrorCode::kAlreadyExists,
                                       "weight set " + event.set.value + ": attach to it",
                                       under_way ? "BeingPublished" : "AlreadyPublished", 0});
    }
    event.model = node::ModelName(asked.model);
    event.holder = who.holder;
    event.instance = who.instance;
    event.bytes = sum(asked.segment_bytes);
    event.held = asked.held;
    begin(std::move(run), event);
}

void PublishDesk::private_load(const Attacher& who, int pid, const protocol::PrivateLoad& asked) {
    Run run;
    run.who = who;
    run.pid = pid;
    run.request = asked.id;
    run.is_private = true;
    run.reason = asked.reason.empty() ? "Unknown" : asked.reason;
    run.asked.fingerprint = asked.fingerprint;
    run.asked.device = asked.device;
    run.asked.held = asked.held;
    log::warn("{} loads weights privately: reason={} {}", who.holder, run.reason, asked.message);
    node::PublishRequested event;
    event.device = node::DeviceId(asked.device);
    event.holder = who.holder;
    event.instance = who.instance;
    event.bytes = sum(asked.segment_bytes, asked.device_overhead_bytes);
    event.held = asked.held;
    event.is_private = true;
    begin(std::move(run), event);
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

void PublishDesk::answered(const node::PublicationAnswered& answer) {
    auto at = runs_.find(answer.publication);
    if (at == runs_.end())
        return;
    Run& run = at->second;
    if (answer.error) {
        fail_request(run, *answer.error);
        // A set that an engine fills over a restart of berthd and that somebody else has by now:
        // the engine is told when it seals.
        runs_.erase(at);
        return;
    }
    run.load = answer.load;
    if (run.who.session == 0)
        end(at, run.asked.held && !run.process_ended, {});
}

void PublishDesk::go(node::LoadId load) {
    auto at = find(load);
    if (at == runs_.end() || at->second.over)
        return;
    Run& run = at->second;
    run.went = true;
    if (run.is_private && !run.asked.held)
        ++context_.metrics.private_loads[run.reason];
    if (run.who.session == 0)
        return end(at, false, {}); // it never learnt that it may
    if (run.request != 0) {
        protocol::Go go;
        go.id = std::exchange(run.request, 0);
        server_->send(run.who.session, go);
    }
}

void PublishDesk::refuse(node::LoadId load, const Error& error) {
    auto at = find(load);
    if (at == runs_.end())
        return;
    fail_request(at->second, error);
    at->second.over = true; // the node said it
    end(at, false, {});
}

void PublishDesk::kill(node::LoadId load) {
    auto at = find(load);
    if (at == runs_.end())
        return;
    fail_request(at->second, Error{ErrorCode::kCorrupt,
                                   "what was sealed is not what was declared: see berthd's events",
                                   "SealedOther", 0});
    at->second.over = true;
    at->second.sealed.reset();
    if (at->second.who.session == 0)
        end(at, !at->second.process_ended, {});
}

void PublishDesk::end(Runs::iterator at, bool holds_bytes, Error why) {
    Run& run = at->second;
    if (!run.load)
        return; // the node has not answered yet: answered() comes back here
    // Past its publisher's end: kept() finishes it.
    if (run.sealed || run.handed)
        return;
    node::LoadId load = *run.load;
    if (!run.over && !run.is_private) {
        run.over = true;
        run.sealed.reset();
        if (why.message.empty())
            why = Error{ErrorCode::kUnavailable,
                        fmt::format("{} ended before it had sealed weight set {}", run.who.holder,
                                    set_of(run.asked.fingerprint).value),
                        "PublisherDied", 0};
        context_.post(node::LoadFailed{load, std::move(why)});
    }
    if (holds_bytes && run.watched)
        return;
    bool is_private = run.is_private;
    runs_.erase(at);
    if (is_private)
        context_.post(node::PrivateLoadEnded{load});
    else
        context_.post(node::LoaderExited{load, "it holds nothing any more"});
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
        return run.who.session == session && !run.is_private && run.went && !run.over &&
               !run.sealed && run.load && run.asked.fingerprint == sealed.fingerprint;
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
    run.request = sealed.id;
    if (Status sound = check_sealed(run, sealed, fds); !sound) {
        fail_request(run, sound.error());
        run.over = true;
        context_.post(node::LoadFailed{*run.load, sound.error()});
        return;
    }
    HandedSet set;
    set.manifest = std::move(fds.front());
    for (size_t i = 1; i < fds.size(); ++i)
        set.segments.push_back(std::move(fds[i]));
    set.segment_bytes = sealed.segment_bytes;
    set.fingerprint = sealed.fingerprint;
    set.fingerprint_json = run.asked.fingerprint_json;
    set.path = run.asked.path;
    set.model = run.asked.model;
    set.phases = sealed.phases;
    set.bytes_read = sealed.bytes_read;
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

void PublishDesk::release(int pid, const protocol::Release& release) {
    for (auto at = runs_.begin(); at != runs_.end();) {
        auto next = std::next(at);
        const Run& run = at->second;
        if (run.pid == pid && run.asked.fingerprint == release.fingerprint)
            end(at, false,
                Error{ErrorCode::kUnavailable,
                      fmt::format("{} gave up weight set {} before it had sealed it",
                                  run.who.holder, set_of(run.asked.fingerprint).value),
                      "PublishingGivenUp", 0});
        at = next;
    }
}

void PublishDesk::session_closed(SessionId session) {
    std::vector<uint64_t> numbers;
    for (auto& [number, run] : runs_)
        if (run.who.session == session) {
            run.who.session = 0;
            numbers.push_back(number);
        }
    for (uint64_t number : numbers) {
        auto at = runs_.find(number);
        if (at == runs_.end())
            continue;
        end(at, at->second.went && !at->second.process_ended, {});
    }
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
