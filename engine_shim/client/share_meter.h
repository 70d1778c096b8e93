// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace berth {

// How long an engine may run although the gate is closed, if the policy leaves it a share of the
// time: time earns credit at the rate of the share, running spends it. A turn begins with
// kTurn of credit and ends when that is spent, so that turns are short and their part of the
// time is the share, whatever the distance between two looks. One thread runs; others may look.
class ShareMeter {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr Nanoseconds kTurn = std::chrono::milliseconds(4);

    // The gate is open: what was spent is forgotten.
    void open() { since_.store(0, std::memory_order_relaxed); }

    // At a look, having run since the one before: whether to run on.
    bool runs_on(uint32_t thousandths, Clock::time_point now) {
        const int64_t at = now.time_since_epoch().count();
        const int64_t since = since_.exchange(at, std::memory_order_relaxed);
        if (since == 0) { // it has just closed
            credit_.store(0, std::memory_order_relaxed);
            return false;
        }
        const int64_t ran = at - since;
        return add(ran * thousandths / 1000 - ran) > 0;
    }

    // While it waits: how long until its next turn at the soonest; 0: it has come.
    Nanoseconds rest(uint32_t thousandths, Clock::time_point now) {
        const int64_t at = now.time_since_epoch().count();
        const int64_t since = since_.exchange(at, std::memory_order_relaxed);
        const int64_t credit =
            since == 0 ? credit_.load(std::memory_order_relaxed)
                       : std::min(add((at - since) * thousandths / 1000), kTurn.count());
        credit_.store(credit, std::memory_order_relaxed);
        const int64_t missing = kTurn.count() - credit;
        if (missing <= 0)
            return Nanoseconds(0);
        return Nanoseconds(missing * 1000 / std::max<int64_t>(thousandths, 1) + 1);
    }

  private:
    int64_t add(int64_t nanoseconds) {
        return credit_.fetch_add(nanoseconds, std::memory_order_relaxed) + nanoseconds;
    }

    std::atomic<int64_t> since_{0}; // the last look since it closed; 0: it was open
    std::atomic<int64_t> credit_{0};
};

// Of an engine with latency targets: what it can spare of the time while it works. After each
// answer the share moves: up by little while there is slack, down at once when there is none.
// (Additive increase, multiplicative decrease: D. Chiu, R. Jain, 1989.)
class SpareTime {
  public:
    struct Targets {
        Nanoseconds ttft{0}; // 0: none
        Nanoseconds tpot{0};
    };
    static constexpr double kSlackWanted = 0.15; // of the target
    static constexpr double kStep = 0.04;
    static constexpr double kMost = 0.9;

    // Thousandths.
    uint32_t after(const Targets& targets, Nanoseconds ttft, Nanoseconds tpot) {
        const auto used = [](Nanoseconds measured, Nanoseconds target) {
            return target.count() <= 0 ? 0.0
                                       : static_cast<double>(measured.count()) /
                                             static_cast<double>(target.count());
        };
        const double most = std::max(used(ttft, targets.ttft), used(tpot, targets.tpot));
        if (targets.ttft.count() <= 0 && targets.tpot.count() <= 0)
            share_ = 0; // nothing says what it could spare
        else if (most > 1)
            share_ /= 2;
        else if (most > 1 - kSlackWanted)
            share_ *= 0.95;
        else
            share_ = std::min(kMost, share_ + kStep * (1 - kSlackWanted - most));
        return static_cast<uint32_t>(share_ * 1000);
    }

  private:
    double share_ = 0;
};

} // namespace berth
