// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/rollout_step.h"
#include "scheduler/node/service.h"

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

Error trouble_of(const Instance& i, std::string reason) {
    return Error{ErrorCode::kFailedPrecondition, state_words(i), std::move(reason), 0};
}

} // namespace

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

// By how much the nearest of its devices is too small, or that one.
Step::Rolling::Missing Step::Rolling::missing(const Instance& i, const DeviceId& only) const {
    Board board(step.s_);
    Missing least;
    for (const Board::Row& row : board.rows()) {
        if (!Board::is_candidate(i, row) || row.device->cordoned ||
            (!only.empty() && row.device->id != only))
            continue;
        const uint64_t need = board.need_bytes(i, row);
        const uint64_t bytes = need > row.free_bytes ? need - row.free_bytes : 0;
        if (bytes < least.bytes)
            least = {row.device->id, bytes};
    }
    return least;
}

std::string Step::Rolling::missing_words(const Instance& i) const {
    const Missing least = missing(i, DeviceId());
    if (least.device.empty() || least.bytes == 0)
        return "";
    return "; on " + least.device.value + " " + format_bytes(least.bytes) + " are missing (" +
           std::to_string(least.bytes) + " bytes)";
}

// What the old one has beyond its request may be all that is missing: it is asked for that, once.
Step::Rolling::Room Step::Rolling::make_room(Rollout& r) {
    Instance* old = find(r.instance);
    const Instance* first = find(r.first);
    if (old == nullptr || first == nullptr || first->reason != "InsufficientMemory" || !r.surge ||
        old->spec.device_count != 1 || step.s_.policy.mode != policies::PolicyMode::kEnforce)
        return Room::kNone;
    const bool gives = old->state == InstanceState::kPreempting && old->desired == Desired::kShrunk;
    if (gives || is_growing(*old))
        return Room::kComes;
    if (r.made_room || old->state != InstanceState::kRunning || !old->session || old->command ||
        old->operation || old->grant_state != GrantState::kHeld)
        return Room::kNone;
    const Missing here = missing(*first, old->devices.front());
    const uint64_t least = grant_bytes_min(*old);
    if (here.bytes == 0 || old->grant_bytes < least || here.bytes > old->grant_bytes - least)
        return Room::kNone;
    r.made_room = true;
    r.message = old->name.value + " gives back " + format_bytes(here.bytes) +
                " that it has beyond its request";
    tell(r, false, "Rollout", r.message);
    step.act(PersistRollout{r});
    step.begin_shrink(*old, old->grant_bytes - here.bytes, HeldBy::kPlanner);
    return Room::kAsked;
}

} // namespace berth::node
