// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/answer_clock.h"

#include <algorithm>
#include <utility>

namespace berth::serve {
namespace {

double seconds(std::chrono::steady_clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}

} // namespace

AnswerClock::AnswerClock(engine::EngineApi& engine, Clock::time_point begun, size_t choices,
                         bool had_first)
    : engine_(engine), begun_(begun), had_first_(had_first), choices_(choices) {
    if (!had_first_)
        engine_.on_awaited(begun_);
}

engine::TokenCallback AnswerClock::stamped(size_t choice, engine::TokenCallback callback) {
    return [self = shared_from_this(), choice,
            callback = std::move(callback)](const engine::TokenEvent& event) {
        if (event.token >= 0)
            self->token(choice, event.finished);
        callback(event);
    };
}

void AnswerClock::token(size_t choice, bool is_last, Clock::time_point now) {
    std::optional<double> first, pace;
    {
        const std::lock_guard lock(mutex_);
        if (ended_)
            return;
        Choice& one = choices_[choice];
        one.last = now;
        if (one.tokens++ == 0) {
            one.first = one.told_at = now;
            one.told = 1;
        }
        const uint32_t untold = one.tokens - one.told;
        if (untold > 0 && (is_last || untold >= kTokensTold || now - one.told_at >= kToldEvery)) {
            pace = seconds(now - one.told_at) / untold;
            one.told = one.tokens;
            one.told_at = now;
        }
        if (!first_ && !had_first_)
            first = seconds(now - begun_);
        if (!first_)
            first_ = now;
    }
    if (first)
        engine_.on_first_token(begun_, *first);
    if (pace)
        engine_.on_pace(*pace);
}

void AnswerClock::end() {
    std::optional<double> first, later;
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(ended_, true))
            return;
        first = first_locked();
        later = later_locked();
        if (!first_ && !had_first_)
            engine_.on_none_awaited(begun_);
    }
    if (first || later)
        engine_.on_answered(first.value_or(0), later.value_or(0));
}

std::optional<double> AnswerClock::first() const {
    const std::lock_guard lock(mutex_);
    return first_locked();
}

std::optional<double> AnswerClock::later() const {
    const std::lock_guard lock(mutex_);
    return later_locked();
}

std::optional<double> AnswerClock::first_locked() const {
    if (!first_ || had_first_)
        return std::nullopt;
    return seconds(*first_ - begun_);
}

std::optional<double> AnswerClock::later_locked() const {
    std::optional<double> slowest;
    for (const Choice& one : choices_)
        if (one.tokens > 1)
            slowest = std::max(slowest.value_or(0),
                               seconds(one.last - one.first) / static_cast<double>(one.tokens - 1));
    return slowest;
}

} // namespace berth::serve
