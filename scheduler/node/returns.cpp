// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/planner.h"
#include "scheduler/node/ranks.h"

#include <algorithm>

// Who comes back by itself, and when: not while its device is busy with somebody's start or with
// the demand of a class that it gives way to, not before the hysteresis is over, and only into
// memory that is reserved for it. Whoever waits too long is told of, or moves up.
namespace berth::node {

// Why nobody may return to that device on its own now; "" when one may.
std::string Step::return_refusal(const Instance& i, const Board::Row& row) {
    if (row.device->cordoned)
        return "cordoned: " + row.device->cordon_reason;
    for (const Instance* other : row.instances)
        if (other != &i && other->state == InstanceState::kStarting)
            return other->name.value + " is starting there";
    std::string words;
    int64_t priority = 0;
    if (higher_demand(i, row.device->id, words, priority))
        return words;
    for (const auto& [class_name, demand] : s_.demands) {
        const auto ended = demand.ended_at.find(row.device->id);
        const policies::PriorityClass* one = s_.policy.find_class(class_name);
        if (ended == demand.ended_at.end() || one == nullptr || !preemptible(s_, i) ||
            one->value - effective_priority(s_, i) < s_.policy.preemption.min_priority_delta)
            continue;
        const TimePoint until = ended->second + s_.policy.resume.online_idle;
        if (until > now_) {
            wake(until);
            return "class " + class_name + " was in demand there a moment ago";
        }
    }
    return "";
}

uint64_t Step::margin_bytes(const DeviceId& device) const {
    const auto found = s_.devices.find(device);
    const bool cuda = found != s_.devices.end() && found->second.kind == DeviceKind::kCuda;
    return s_.policy.resume.memory_margin_bytes.value_or(cuda ? kCudaMarginBytes : 0);
}

// A suspended one that the planner holds.
void Step::come_back(Instance& i, Board& board) {
    if (!i.session || i.restart_at > now_)
        return;
    std::string words;
    std::string reason = held_back(i, words);
    if (reason.empty()) {
        for (const DeviceId& device : i.places())
            if (Board::Row* row = board.find(device); row != nullptr && words.empty())
                words = return_refusal(i, *row);
        if (words.empty()) {
            Error why;
            const auto taken = [this](const Board::Row& row) {
                return row.claimed_before_bytes + margin_bytes(row.device->id);
            };
            if (resume_suspended(i, room_for_each(i, board, taken), why))
                board.placed(i);
            return;
        }
        reason = "WaitingForDevice";
    }
    if (i.reason == reason) {
        i.message = words;
        return;
    }
    enter(i, i.state, "", reason, words);
}

void Step::watch_starvation() {
    const policies::StarvationSpec& spec = s_.policy.starvation;
    const bool boosts = spec.action == policies::StarvationAction::kBoostPriority;
    for (auto& [name, i] : s_.instances) {
        i.boosted = i.boosted && boosts; // the policy may have changed
        const bool parked =
            i.state == InstanceState::kPaused || i.state == InstanceState::kSuspended;
        const bool waiting = waits_for_room(i) || (parked && i.held_by == HeldBy::kPlanner);
        if (!waiting || i.on_hold || !window_open(i.spec.class_name)) {
            i.starving = false;
            if (i.state != InstanceState::kRunning && !i.process_alive)
                i.boosted = false;
            if (i.boosted && i.state == InstanceState::kRunning) {
                const TimePoint end = i.running_since + s_.policy.preemption.exempt_time;
                i.boosted = end > now_; // protected until it has had a turn
                if (i.boosted)
                    wake(end);
            }
            continue;
        }
        const TimePoint due = i.waiting_since + spec.suspended_max;
        if (now_ < due) {
            wake(due);
            continue;
        }
        if (i.starving) { // the policy may have changed its mind since
            i.boosted = spec.action == policies::StarvationAction::kBoostPriority;
            continue;
        }
        i.starving = true;
        i.boosted = boosts;
        tell(i, true, "Starving",
             "it has not run for " + format_duration(now_ - i.waiting_since) +
                 " (starvation.maxSuspendedTime: " + format_duration(spec.suspended_max) + ")" +
                 (i.boosted ? "; it now ranks with the next higher class" : "") +
                 (i.reason.empty() ? "" : "; it waits because: " + i.reason + ": " + i.message));
    }
}

} // namespace berth::node
