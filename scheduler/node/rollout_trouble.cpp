// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/rollout_step.h"
#include "scheduler/node/service.h"

#include <algorithm>
#include <map>
#include <utility>

// Why a new one will not become ready, and how room is made for it.
namespace berth::node {

std::string state_words(const Instance& i) {
    std::string text = i.name.value + " is " + std::string(to_string(i.state));
    if (!i.reason.empty())
        text += ", " + i.reason;
    // That it would be tried again is not true of what a rollout ends.
    return text +
           (i.message.empty() ? "" : ": " + i.message.substr(0, i.message.rfind("; again ")));
}

bool is_for_room(const std::string& reason) {
    return reason == "InsufficientMemory" || reason == "QuotaExceeded" ||
           reason == "PreemptExempt" || reason == "DisruptionBudgetExhausted";
}

namespace {

constexpr size_t kAnswerTokens = 2; // of each prompt

// Where two tokens are about as likely kernels that add up otherwise may choose the other; so one
// answer of several is enough.
bool answers_alike(const std::vector<uint64_t>& was, const std::vector<uint64_t>& is) {
    for (size_t at = 0; at < was.size(); at += kAnswerTokens)
        if (std::equal(was.begin() + static_cast<std::ptrdiff_t>(at),
                       was.begin() +
                           static_cast<std::ptrdiff_t>(std::min(at + kAnswerTokens, was.size())),
                       is.begin() + static_cast<std::ptrdiff_t>(at)))
            return true;
    return false;
}

std::string words_of(const std::vector<uint64_t>& tokens) {
    std::string words;
    for (const uint64_t token : tokens)
        words += (words.empty() ? "" : " ") + std::to_string(token);
    return words;
}

Error trouble_of(const Instance& i, std::string reason) {
    return Error{ErrorCode::kFailedPrecondition, state_words(i), std::move(reason), 0};
}

} // namespace

// One that never does is ended after a while, and followed.
bool Step::Rolling::awaits_old(const Rollout& r) const {
    return std::ranges::any_of(step.s_.instances, [&r](const auto& one) {
        const Instance& i = one.second;
        const bool is_of_it = i.name == r.instance || i.service == r.instance.value;
        return is_of_it && i.name != r.first && i.process_alive && !i.session && !i.stands_by &&
               !i.dying && !is_plain_process(i) && i.state == InstanceState::kRunning;
    });
}

// Back to the document before there is always a way.
std::optional<Error> Step::Rolling::disagreement(const Rollout& r) const {
    const Instance* before = who_serves(r);
    const Instance& next = *find(r.first);
    if (before == nullptr || before == &next || r.undo || r.goes_back)
        return std::nullopt;
    const auto &was = before->canary_tokens, &is = next.canary_tokens;
    const bool comparable = !was.empty() && was.size() == is.size() && !before->identity.empty() &&
                            before->identity == next.identity;
    if (!comparable || answers_alike(was, is))
        return std::nullopt;
    return Error{ErrorCode::kMismatch,
                 next.name.value + " answers each of the canary's prompts otherwise than " +
                     before->name.value + " (tokens " + words_of(is) + ", not " + words_of(was) +
                     "), with the same weights: one of them computes wrongly",
                 "CanaryDiffers", 0};
}

// Why it will not become ready. Of who takes the document first everything counts, as nothing
// forces anybody to wait for it.
std::optional<Error> Step::Rolling::trouble(const InstanceName& name, TimePoint since,
                                            bool first) const {
    const Instance* i = find(name);
    if (i == nullptr)
        return Error{ErrorCode::kNotFound, name.value + " is no longer there", "Removed", 0};
    const bool backs_off = i->state == InstanceState::kPending && i->reason == "BackOff";
    if (backs_off || (!i->failures.empty() && i->failures.back() > since))
        return trouble_of(*i, "StartFailed");
    if (i->state == InstanceState::kFailed || i->state == InstanceState::kSucceeded)
        return trouble_of(*i, i->reason.empty() ? "Ended" : i->reason);
    if (i->on_hold && !i->process_alive)
        return trouble_of(*i, "OnHold");
    if (i->state == InstanceState::kEvicted && (first || i->held_by == HeldBy::kOperator))
        return trouble_of(*i, "Preempted");
    if (!first)
        return std::nullopt;
    if (i->state == InstanceState::kPaused || i->state == InstanceState::kSuspended)
        return trouble_of(*i, "Preempted");
    if (i->state == InstanceState::kUnkillable)
        return trouble_of(*i, i->reason);
    if (i->state == InstanceState::kPending && !i->reason.empty() &&
        i->reason != "WaitingForReclaim") {
        Error error = trouble_of(*i, i->reason);
        if (is_for_room(i->reason))
            error.message += missing_words(*i);
        return error;
    }
    return std::nullopt;
}

// What can be known before the old one is touched: there are not as many devices as the new one
// takes, or they could not hold it, in place even when the old one is gone.
std::optional<Error> Step::Rolling::no_place(const OperatorRollout& event,
                                             const Instance& i) const {
    Instance wanted;
    wanted.name = i.name;
    wanted.spec = event.spec;
    const policies::PriorityClass* of_class = step.s_.policy.find_class(event.spec.class_name);
    const std::optional<int64_t> below =
        of_class->preempts_lower
            ? std::optional(of_class->value - step.s_.policy.preemption.min_priority_delta)
            : std::nullopt;
    Board board(step.s_);
    size_t there = 0;
    std::map<DeviceKind, size_t> fit;
    uint64_t most = 0;
    for (const Board::Row& row : board.rows()) {
        if (!Board::is_candidate(wanted, row) || row.device->cordoned)
            continue;
        ++there;
        const uint64_t need = board.need_bytes(wanted, row);
        const uint64_t leaves = (i.grant_bytes + i.overhead_bytes) * i.times_on(row.device->id) +
                                board.sole_weights_bytes(i, row);
        most = std::max(most, need);
        if (need <= row.most_bytes() &&
            (!event.in_place || Board::could_have(row, need - std::min(need, leaves), below)))
            ++fit[row.device->kind];
    }
    const std::string count = std::to_string(event.spec.device_count) +
                              (event.spec.device_count == 1 ? " device" : " devices");
    if (there < event.spec.device_count)
        return Error{ErrorCode::kFailedPrecondition,
                     "the new one needs " + count + ", and of those that it may have " +
                         std::to_string(there) + " are in service",
                     "DeviceUnavailable", 0};
    size_t enough = 0;
    for (const auto& [kind, devices] : fit)
        enough = std::max(enough, devices);
    if (enough >= event.spec.device_count)
        return std::nullopt;
    return Error{ErrorCode::kFailedPrecondition,
                 "the new one needs " + count + " with " + format_bytes(most) + " each, and " +
                     std::to_string(enough) + " could give it that" +
                     (event.in_place ? " once the old one is gone" : ""),
                 "InsufficientMemory", 0};
}

// What it lacks on each of as many devices as it takes, of those that lack least; empty: there are
// fewer. Of a giver that runs it counts what each of its ranks would have to give there.
std::vector<Step::Rolling::Missing> Step::Rolling::missing(const Instance& i,
                                                           const Instance* giver) const {
    Board board(step.s_);
    std::vector<Missing> all;
    for (const Board::Row& row : board.rows()) {
        if (!Board::is_candidate(i, row) || row.device->cordoned)
            continue;
        const uint64_t need = board.need_bytes(i, row);
        Missing here{row.device->id, row.device->kind, 0, 0};
        here.bytes = need > row.free_bytes ? need - row.free_bytes : 0;
        const uint64_t times = giver == nullptr ? 1 : giver->times_on(row.device->id);
        here.each = here.bytes == 0 ? 0
                    : times == 0    ? UINT64_MAX
                                    : (here.bytes + times - 1) / times;
        all.push_back(here);
    }
    std::ranges::sort(all, {}, [](const Missing& one) { return std::pair(one.each, one.device); });
    if (i.spec.device_count > 1 && !all.empty()) // of several they are of one kind
        std::erase_if(all,
                      [kind = all.front().kind](const Missing& one) { return one.kind != kind; });
    all.resize(all.size() < i.spec.device_count ? 0 : i.spec.device_count);
    return all;
}

std::string Step::Rolling::missing_words(const Instance& i) const {
    std::string words;
    for (const Missing& one : missing(i, nullptr))
        if (one.bytes > 0)
            words += (words.empty() ? "; on " : ", on ") + one.device.value + " " +
                     format_bytes(one.bytes) + " are missing (" + std::to_string(one.bytes) +
                     " bytes)";
    return words.empty() ? words
                         : words + "; with --max-unavailable 1 it is replaced in place instead";
}

// What the old one has beyond its request may be all that is missing: it is asked for that, once.
Step::Rolling::Room Step::Rolling::make_room(Rollout& r) {
    Instance* old = find(r.instance);
    const Instance* first = find(r.first);
    if (old == nullptr || first == nullptr || first->reason != "InsufficientMemory" || !r.surge ||
        step.s_.policy.mode != policies::PolicyMode::kEnforce)
        return Room::kNone;
    const bool gives = old->state == InstanceState::kPreempting && old->desired == Desired::kShrunk;
    if (gives || is_growing(*old))
        return Room::kComes;
    if (r.made_room || old->state != InstanceState::kRunning || !old->session || old->command ||
        old->operation || old->grant_state != GrantState::kHeld)
        return Room::kNone;
    const std::vector<Missing> here = missing(*first, old);
    const uint64_t each = here.empty() ? 0 : here.back().each;
    const uint64_t least = grant_bytes_min(*old);
    if (each == 0 || old->grant_bytes < least || each > old->grant_bytes - least)
        return Room::kNone;
    r.made_room = true;
    r.message = old->name.value + " gives back " + format_bytes(each) +
                " that it has beyond its request" +
                (old->ranks > 1 ? ", of each of its " + std::to_string(old->ranks) + " ranks" : "");
    tell(r, false, "Rollout", r.message);
    step.act(PersistRollout{r});
    step.begin_shrink(*old, old->grant_bytes - each, HeldBy::kPlanner);
    return Room::kAsked;
}

} // namespace berth::node
