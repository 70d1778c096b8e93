// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

namespace berth {

// Of an engine with a target for the time per later token: how long a turn of others may be, so
// that no answer under way misses it. An answer has the target's time for each token that it has
// had and for its next one; what of that has gone is not there to be given, nor is the longest step
// of late, since one with somebody's prompt in it may come before its next token. One thread.
class TurnSlack {
  public:
    static constexpr double kUsed = 0.8;     // of the target: what turns may bring an answer to
    static constexpr double kForgets = 0.95; // of the longest step, each step
    // What is so many tokens behind was not made so by turns, and holds none back.
    static constexpr double kGivenUp = 16;
    // A shorter turn is not worth the change of hands.
    static constexpr Nanoseconds kTurnLeast = std::chrono::milliseconds(2);

    // One answer under way: how many tokens it has had after its first, and the time since that.
    void answer(Nanoseconds target, uint64_t later, Nanoseconds since_first) {
        if (target.count() <= 0)
            return;
        target_ = target;
        const double usable = kUsed * static_cast<double>(target.count());
        const double left =
            usable * static_cast<double>(later + 1) - static_cast<double>(since_first.count());
        if (left > -kGivenUp * usable)
            least_ = std::min(least_, static_cast<int64_t>(std::clamp(left, 0.0, 1e15)));
    }

    void step(Nanoseconds took) {
        const auto faded = static_cast<int64_t>(static_cast<double>(longest_.count()) * kForgets);
        longest_ = std::max(took, Nanoseconds(faded));
        stepped_ = true;
    }
    // The longest turn that all answers told since the one before can bear; without any there is no
    // limit. `stepped`: since turns were last possible, for those who tell no single steps.
    Nanoseconds after(Nanoseconds stepped) {
        if (!std::exchange(stepped_, false)) {
            step(stepped);
            stepped_ = false;
        }
        const int64_t least = std::exchange(least_, kNone);
        if (least == kNone)
            return Nanoseconds(kNone);
        const int64_t turn = least - std::min(longest_, target_ / 2).count();
        return turn < kTurnLeast.count() ? Nanoseconds(0) : Nanoseconds(turn);
    }

  private:
    static constexpr int64_t kNone = INT64_MAX;
    Nanoseconds target_{0};
    Nanoseconds longest_{0};
    int64_t least_ = kNone;
    bool stepped_ = false;
};

} // namespace berth
