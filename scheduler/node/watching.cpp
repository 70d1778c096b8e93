// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/watching.h"

#include "scheduler/node/service.h"

#include <algorithm>
#include <utility>

namespace berth::node {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Nanoseconds kReportTime = seconds(1); // between two reports of an engine
constexpr Nanoseconds kLookAgain = seconds(1);  // in which what was sent meanwhile is taken in
constexpr Nanoseconds kLate = milliseconds(500);
constexpr int kTimesAlone = 3; // so many deadlines where nobody can take over

bool is_watched(const Instance& i) {
    return !i.service.empty() && i.state == InstanceState::kRunning && i.substate != "Killed" &&
           may_act(i);
}

TimePoint last_word(const Instance& i) {
    return *std::ranges::min_element(i.heard_at);
}

// For so long nothing may come from it, where somebody can take over.
Nanoseconds quiet_most(const Instance& i, int deadlines = 1) {
    return i.spec.engine.step_deadline * deadlines + kReportTime +
           (i.session ? Nanoseconds(0) : kReconnectTime);
}

std::string limit_words(const Instance& i, const Instance* next) {
    const std::string limit =
        format_duration(i.spec.engine.step_deadline) + " (engine.stepDeadline)";
    return next != nullptr
               ? limit
               : std::to_string(kTimesAlone) + " times " + limit + ", as nobody can take over";
}

} // namespace

void Step::on(const EngineHeard& event) {
    plans_ = false;
    if (Instance* i = find(event.instance); i != nullptr && i->session)
        Watching{*this}.heard(*i, event.rank);
}

void Step::Watching::begin(Instance& i) {
    if (i.service.empty())
        return;
    i.heard_at.assign(i.ranks, step.now_);
    i.is_silent = false;
    if (!i.look_timer)
        look_again(i, step.now_ + quiet_most(i));
}

void Step::Watching::heard(Instance& i, uint32_t rank) {
    if (rank < i.heard_at.size())
        i.heard_at[rank] = step.now_;
}

void Step::Watching::look_again(Instance& i, TimePoint at) {
    i.look_at = at;
    step.arm(i.look_timer, Timer{Timer::Kind::kLook, i.name, {}}, at);
}

// Who could answer in its place, and is heard itself.
const Instance* Step::Watching::successor(const Instance& i) const {
    const Instance* twin = i.stands_by ? nullptr : twin_of(step.s_, i);
    const bool can = twin != nullptr && is_warm(*twin) && twin->session &&
                     !twin->heard_at.empty() && step.now_ - last_word(*twin) < quiet_most(*twin);
    return can ? twin : nullptr;
}

// If this daemon was frozen itself, or had no time, what others have sent lies unread: silence
// counts only at the second of two looks that both came in time.
void Step::Watching::look(Instance& i) {
    step.plans_ = false;
    if (!i.process_alive || i.service.empty() || i.heard_at.empty())
        return;
    const Nanoseconds quiet = step.now_ - last_word(i);
    const bool late = step.now_ - i.look_at > kLate;
    if (!is_watched(i) || quiet < quiet_most(i)) {
        i.is_silent = false;
        const Nanoseconds rest = is_watched(i) ? quiet_most(i) - quiet : quiet_most(i);
        return look_again(i, step.now_ + std::max(rest, kLookAgain));
    }
    const Instance* next = successor(i);
    const bool over = quiet >= quiet_most(i, next == nullptr ? kTimesAlone : 1);
    if (late || !std::exchange(i.is_silent, true) || !over) {
        i.is_silent = !late;
        return look_again(i, step.now_ + kLookAgain);
    }
    std::string who = "it";
    if (const auto rank = std::ranges::min_element(i.heard_at); i.ranks > 1)
        who = "rank " + std::to_string(rank - i.heard_at.begin());
    end(i, next, "EngineSilent",
        who + " has said nothing for " + format_duration(quiet) + ", longer than " +
            limit_words(i, next));
}

// A step that takes too long, by the engine's own clock.
void Step::Watching::at_step(Instance& i) {
    if (i.stands_by || !is_watched(i))
        return;
    const Nanoseconds taken = milliseconds(i.counters.step_ms);
    const Instance* next = successor(i);
    if (taken < i.spec.engine.step_deadline * (next == nullptr ? kTimesAlone : 1))
        return;
    end(i, next, "StepStuck",
        "a step has taken " + std::to_string(i.counters.step_ms) + " ms, longer than " +
            limit_words(i, next));
}

void Step::Watching::end(Instance& i, const Instance* next, std::string reason,
                         std::string message) {
    step.plans_ = true;
    i.reason = std::move(reason);
    i.message = std::move(message);
    step.tell(i, true, i.reason,
              i.message + "; it is ended, and " +
                  (next == nullptr ? "started again" : next->name.value + " takes over"));
    step.kill(i);
}

} // namespace berth::node
