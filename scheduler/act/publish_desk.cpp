// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/publish_desk.h"

#include "base/log.h"
#include "cache/weights/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

uint64_t PublishDesk::sum(const std::vector<uint64_t>& parts) {
    uint64_t all = 0;
    for (uint64_t part : parts)
        if (__builtin_add_overflow(all, part, &all))
            return UINT64_MAX;
    return all;
}

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

std::optional<Error> PublishDesk::too_many(const Run& run) const {
    auto same_process = [&](const auto& entry) {
        const Attacher& other = entry.second.who;
        return other.session == run.who.session || (run.who.pid > 0 && other.pid == run.who.pid);
    };
    const auto own = static_cast<size_t>(std::ranges::count_if(runs_, same_process));
    if (own >= kProcessRunsMax)
        return Error{ErrorCode::kResourceExhausted,
                     fmt::format("{} has {} publications and private loads under way, which is "
                                 "the limit of one process: seal or release some first",
                                 run.who.holder, own),
                     "TooManyPublications", 0};
    const size_t most = run.asked.held ? kRunsHeldMax : kRunsMax;
    if (runs_.size() >= most)
        return Error{ErrorCode::kResourceExhausted,
                     fmt::format("{} publications and private loads are under way on this node, "
                                 "which takes {}: try later",
                                 runs_.size(), most),
                     "TooManyPublications", 0};
    return std::nullopt;
}

void PublishDesk::begin(Run run, const node::PublishRequested& event) {
    if (run.asked.held)
        end_announced_before(run);
    if (auto refused = too_many(run))
        return fail_request(run, std::move(*refused));
    node::PublishRequested numbered = event;
    numbered.publication = next_++;
    numbered.holder = run.who.holder;
    numbered.instance = run.who.instance;
    numbered.held = run.asked.held;
    runs_.emplace(numbered.publication, std::move(run));
    context_.post(std::move(numbered));
}

// An engine that comes back says again what it holds: what its lost connection had said is that.
void PublishDesk::end_announced_before(const Run& again) {
    end_all([&](Run& run) {
        run.let_go = run.let_go || (run.who.pid == again.who.pid && run.who.session == 0 &&
                                    run.is_private == again.is_private &&
                                    run.asked.device == again.asked.device &&
                                    run.asked.fingerprint == again.asked.fingerprint);
        return run.let_go;
    });
}

void PublishDesk::publish(const Attacher& who, const protocol::Publish& asked) {
    Run run;
    run.who = who;
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
    node::PublishRequested event;
    event.set = set_of(asked.fingerprint);
    event.device = node::DeviceId(run.asked.device);
    if (asked.find_only)
        return find_only(std::move(run), event);
    event.model = node::ModelName(asked.model);
    event.bytes = sum(asked.segment_bytes);
    if (event.bytes == 0)
        return fail_request(run, Error{ErrorCode::kInvalidArgument,
                                       fmt::format("a publication of {} segments and no byte was "
                                                   "asked for",
                                                   asked.segment_bytes.size()),
                                       "Empty", 0});
    begin(std::move(run), event);
}

void PublishDesk::private_load(const Attacher& who, const protocol::PrivateLoad& asked) {
    if (asked.held && asked.device_overhead_bytes == 0 && loader_ended(who, asked))
        return;
    Run run;
    run.who = who;
    run.request = asked.id;
    run.is_private = true;
    run.reason = asked.reason.empty() ? "Unknown" : asked.reason;
    run.overhead_bytes = asked.device_overhead_bytes;
    run.asked.fingerprint = asked.fingerprint;
    run.asked.device = asked.device;
    run.asked.held = asked.held;
    node::PublishRequested event;
    event.device = node::DeviceId(asked.device);
    event.bytes = sum(asked.segment_bytes);
    event.overhead_bytes = asked.device_overhead_bytes;
    event.is_private = true;
    if (event.bytes == 0)
        return fail_request(run, Error{ErrorCode::kInvalidArgument,
                                       fmt::format("a private load of {} segments and no byte was "
                                                   "asked for",
                                                   asked.segment_bytes.size()),
                                       "Empty", 0});
    if (!asked.held)
        log::warn("{} loads weights privately: reason={} {}", who.holder, run.reason,
                  asked.message);
    begin(std::move(run), event);
}

// One who says on the same connection that it holds what it was loading has seen its loader's end.
bool PublishDesk::loader_ended(const Attacher& who, const protocol::PrivateLoad& held) {
    auto at = std::find_if(runs_.begin(), runs_.end(), [&](const auto& entry) {
        const Run& run = entry.second;
        return run.is_private && run.overhead_bytes > 0 && run.who.session == who.session &&
               run.asked.fingerprint == held.fingerprint && run.asked.device == held.device;
    });
    if (at == runs_.end())
        return false;
    at->second.overhead_bytes = 0;
    if (at->second.load)
        context_.post(node::PrivateLoadFilled{*at->second.load});
    return true;
}

void PublishDesk::answered(const node::PublicationAnswered& answer) {
    auto at = runs_.find(answer.publication);
    if (at == runs_.end())
        return;
    Run& run = at->second;
    if (answer.error)
        fail_request(run, *answer.error);
    if (!answer.load) {
        const SessionId session = run.who.session;
        std::optional<EarlySeal> early = std::move(run.early);
        runs_.erase(at);
        return take_early(session, std::move(early));
    }
    run.load = answer.load;
    // Somebody else has that set by now: the engine is told when it seals.
    run.counted_only = answer.error.has_value();
    if (run.let_go || run.who.session == 0)
        return end(at, run.holds_bytes(), {});
    if (run.is_private && run.overhead_bytes == 0)
        context_.post(node::PrivateLoadFilled{*run.load});
    else if (run.counted_only)
        take_early(run.who.session, std::exchange(run.early, std::nullopt));
}

// Now that it is known whether it may.
void PublishDesk::take_early(SessionId session, std::optional<EarlySeal> early) {
    if (early && session != 0)
        sealed(session, early->message, std::move(early->fds));
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
        return end(at, run.asked.held && run.holds_bytes(), {}); // it never learnt that it may
    if (run.request != 0) {
        protocol::Go go;
        go.id = std::exchange(run.request, 0);
        server_->send(run.who.session, go);
    }
    take_early(run.who.session, std::exchange(run.early, std::nullopt));
}

void PublishDesk::refuse(node::LoadId load, const Error& error) {
    auto at = find(load);
    if (at == runs_.end())
        return;
    fail_request(at->second, error);
    at->second.over = true; // the node said it
    const SessionId session = at->second.who.session;
    std::optional<EarlySeal> early = std::move(at->second.early);
    end(at, false, {});
    take_early(session, std::move(early));
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
        end(at, at->second.holds_bytes(), {});
}

void PublishDesk::end(Runs::iterator at, bool holds_bytes, Error why) {
    Run& run = at->second;
    if (!run.load)
        return; // the node has not answered yet: answered() comes back here
    // Past its publisher's end: kept() finishes it.
    if (run.sealed || run.handed)
        return;
    node::LoadId load = *run.load;
    if (!run.over && run.is_set()) {
        run.over = true;
        run.sealed.reset();
        if (why.message.empty())
            why = Error{ErrorCode::kUnavailable,
                        fmt::format("{} ended before it had sealed weight set {}", run.who.holder,
                                    set_of(run.asked.fingerprint).value),
                        "PublisherDied", 0};
        context_.post(node::LoadFailed{load, std::move(why)});
    }
    if (holds_bytes)
        return;
    bool is_set = run.is_set();
    runs_.erase(at);
    if (is_set)
        context_.post(node::LoaderExited{load, "it holds nothing any more"});
    else
        context_.post(node::PrivateLoadEnded{load});
}

// One at a time: a process may hold the same inputs twice. What is left of a lost connection is
// found by the process.
void PublishDesk::release(const Attacher& who, const protocol::Release& release) {
    auto held_by = [&](SessionId session) {
        return std::find_if(runs_.begin(), runs_.end(), [&](const auto& entry) {
            const Run& run = entry.second;
            return run.who.session == session && run.who.pid == who.pid && !run.let_go &&
                   !run.sealed && !run.handed && run.asked.fingerprint == release.fingerprint;
        });
    };
    auto at = held_by(who.session);
    if (at == runs_.end())
        at = held_by(0);
    if (at == runs_.end())
        return;
    at->second.let_go = true;
    end(at, false,
        Error{ErrorCode::kUnavailable,
              fmt::format("{} gave up weight set {} before it had sealed it", who.holder,
                          set_of(release.fingerprint).value),
              "PublishingGivenUp", 0});
}

void PublishDesk::session_closed(SessionId session) {
    end_all([&](Run& run) {
        return run.who.session == session && std::exchange(run.who.session, 0) != 0;
    });
}

void PublishDesk::process_ended() {
    end_all([](const Run& run) { return run.who.session == 0 && !run.lives(); });
}

// Those that are picked; ending one may end others by what the node then decides.
void PublishDesk::end_all(const std::function<bool(Run&)>& picked) {
    std::vector<uint64_t> numbers;
    for (auto& [number, run] : runs_)
        if (picked(run))
            numbers.push_back(number);
    for (uint64_t number : numbers)
        if (auto at = runs_.find(number); at != runs_.end())
            end(at, at->second.holds_bytes(), {});
}

} // namespace berth
