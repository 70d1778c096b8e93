// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/serve/engine_api.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace berth::serve {

// When a request's tokens came out of the engine, whatever its client does with them; tells the
// engine's side of it while it happens. Each choice has a pace of its own; the first token of any
// is the request's. Thread-safe; the engine outlives it.
class AnswerClock : public std::enable_shared_from_this<AnswerClock> {
  public:
    using Clock = engine::EngineApi::Clock;
    // How long a token takes is told of so many at a time, and at least this often.
    static constexpr uint32_t kTokensTold = 16;
    static constexpr std::chrono::milliseconds kToldEvery{250};

    // `had_first`: another engine gave the first token; what is left has a pace alone.
    AnswerClock(engine::EngineApi& engine, Clock::time_point begun, size_t choices, bool had_first);
    AnswerClock(const AnswerClock&) = delete;
    AnswerClock& operator=(const AnswerClock&) = delete;

    // Of events on the engine's thread: stamps one, and hands it on.
    engine::TokenCallback stamped(size_t choice, engine::TokenCallback callback);
    void token(size_t choice, bool is_last, Clock::time_point now = Clock::now());
    // Nothing more is told but its end, if it had a token; once.
    void end();

    // Seconds; of the request, and for each later token of the choice where that takes longest.
    std::optional<double> first() const;
    std::optional<double> later() const;

  private:
    struct Choice {
        uint32_t tokens = 0, told = 0; // of which have been told
        Clock::time_point first, last, told_at;
    };
    std::optional<double> first_locked() const;
    std::optional<double> later_locked() const;

    engine::EngineApi& engine_;
    const Clock::time_point begun_;
    const bool had_first_;
    mutable std::mutex mutex_; // guards all below
    std::vector<Choice> choices_;
    std::optional<Clock::time_point> first_;
    bool ended_ = false;
};

} // namespace berth::serve
