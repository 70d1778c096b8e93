// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
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
    static constexpr Nanoseconds kNever = Nanoseconds::max();

    // The gate is open: what was spent is forgotten.
    void open() { since_.store(0, std::memory_order_relaxed); }

    // At a look, having run since the one before: whether to run on.
    bool runs_on(uint32_t thousandths, Clock::time_point now) {
        const int64_t at = now.time_since_epoch().count();
        const int64_t since = since_.exchange(at, std::memory_order_relaxed);
        if (since == 0 || thousandths == 0) // it has just closed, or leaves nothing
            return nothing_is_left();
        const int64_t ran = at - since;
        return add(ran * thousandths / 1000 - ran) > 0;
    }

    // While it waits: how long until its next turn at the soonest; 0: it has come; kNever: not with
    // a share of nothing.
    Nanoseconds rest(uint32_t thousandths, Clock::time_point now) {
        const int64_t at = now.time_since_epoch().count();
        const int64_t since = since_.exchange(at, std::memory_order_relaxed);
        if (since == 0 || thousandths == 0)
            nothing_is_left();
        if (thousandths == 0)
            return kNever;
        const int64_t earned = since == 0 ? 0 : (at - since) * thousandths / 1000;
        const int64_t credit = std::min(add(earned), kTurn.count());
        credit_.store(credit, std::memory_order_relaxed);
        const int64_t missing = kTurn.count() - credit;
        return Nanoseconds(missing <= 0 ? 0 : missing * 1000 / thousandths + 1);
    }

  private:
    bool nothing_is_left() {
        credit_.store(0, std::memory_order_relaxed);
        return false;
    }
    int64_t add(int64_t nanoseconds) {
        return credit_.fetch_add(nanoseconds, std::memory_order_relaxed) + nanoseconds;
    }

    std::atomic<int64_t> since_{0}; // the last look since it closed; 0: it was open
    std::atomic<int64_t> credit_{0};
};

// Of an engine that works in steps and gives lower classes their share between them: each step
// earns the others time, and when they have earned a turn they get it whole, so that the device
// changes hands seldom and nobody computes beside this engine's steps. One thread.
class TurnBook {
  public:
    static constexpr Nanoseconds kTurn = std::chrono::milliseconds(6);
    static constexpr Nanoseconds kTurnMax = std::chrono::milliseconds(60);
    static constexpr uint32_t kShareMax = 950;

    // After a step that took `step`: how long the turn is that is due now; 0: none.
    Nanoseconds after(Nanoseconds step, uint32_t thousandths) {
        const auto share = static_cast<int64_t>(std::min(thousandths, kShareMax));
        earned_ = std::min(earned_ + step * share / (1000 - share), kTurnMax);
        if (share == 0)
            earned_ = Nanoseconds(0);
        return earned_ < kTurn ? Nanoseconds(0) : earned_;
    }
    void given(Nanoseconds turn) { earned_ = std::max(earned_ - turn, Nanoseconds(0)); }
    void nobody_waited() { earned_ = Nanoseconds(0); }

  private:
    Nanoseconds earned_{0};
};

// How much of the last seconds an engine had demand. Where it leaves much of the time idle others
// have enough already, and a part of its busy time would only be taken from their idle time: what
// is computed later is still to be computed.
class BusyTime {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr double kSeconds = 5; // over about so many
    // Parts of the time with demand: from the one on others get a share, from the other on all of
    // it.
    static constexpr double kLow = 0.25, kHigh = 0.5;

    void set(bool busy, Clock::time_point now) {
        settle(now);
        busy_ = busy;
    }
    double part(Clock::time_point now) {
        settle(now);
        return part_;
    }
    // 0 to 1: what of a share is needed.
    double need(Clock::time_point now) {
        return std::clamp((part(now) - kLow) / (kHigh - kLow), 0.0, 1.0);
    }

  private:
    void settle(Clock::time_point now) {
        if (since_ != Clock::time_point()) {
            const double gone = std::chrono::duration<double>(now - since_).count();
            const double kept = std::exp(-gone / kSeconds);
            part_ = part_ * kept + (busy_ ? 1 - kept : 0);
        }
        since_ = now;
    }

    Clock::time_point since_;
    double part_ = 1; // nothing is known yet
    bool busy_ = false;
};

// Of an engine with latency targets: what it can spare of the time while it works. After each
// answer the share moves: up while there is slack, quickly until it is close to where it last came
// near a target and by little from there on, down at once when a target was missed: as each miss is
// one of the few that a percentile of 99 allows. A miss that is seen before its answer has ended
// halves the share then.
// (Additive increase, multiplicative decrease: D. Chiu, R. Jain, 1989; what is known of where too
// much begins, as TCP's slow start threshold: V. Jacobson, 1988.)
class SpareTime {
  public:
    struct Targets {
        Nanoseconds ttft{0}; // 0: none
        Nanoseconds tpot{0};
    };
    static constexpr double kSlackWanted = 0.15; // of the target
    static constexpr double kFirstStep = 0.04;
    static constexpr double kStep = 0.004;
    static constexpr double kMost = 0.9;
    static constexpr double kKnownPart = 0.85; // of what was too much: quickly up to there
    static constexpr double kForgets = 0.9;    // of what was too much, each time one comes near
    // Misses of answers under way that are seen within this have one cause, and what was done
    // about it has not shown yet.
    static constexpr Nanoseconds kShowsAfter = std::chrono::milliseconds(250);
    using Clock = std::chrono::steady_clock;

    // An answer has ended; 0: not measured. Thousandths.
    uint32_t after(const Targets& targets, Nanoseconds ttft, Nanoseconds tpot) {
        return move(targets, used(targets, ttft, tpot));
    }
    // The same, of one whose misses were told by under_way().
    uint32_t after_told(const Targets& targets, Nanoseconds ttft, Nanoseconds tpot) {
        return move(targets, std::min(used(targets, ttft, tpot), 1.0));
    }
    // What is known of requests that are not answered yet; 0: nothing. Never more than before.
    uint32_t under_way(const Targets& targets, Nanoseconds ttft, Nanoseconds tpot,
                       Clock::time_point now) {
        const double most = used(targets, ttft, tpot);
        if (most <= 1 || share() == 0 || now < lowered_ + kShowsAfter)
            return share();
        lowered_ = now;
        return move(targets, most);
    }

  private:
    static double used(const Targets& targets, Nanoseconds ttft, Nanoseconds tpot) {
        const auto part = [](Nanoseconds measured, Nanoseconds target) {
            return target.count() <= 0 ? 0.0
                                       : static_cast<double>(measured.count()) /
                                             static_cast<double>(target.count());
        };
        return std::max(part(ttft, targets.ttft), part(tpot, targets.tpot));
    }
    uint32_t share() const { return static_cast<uint32_t>(share_ * 1000); }
    uint32_t move(const Targets& targets, double most) {
        const bool none = targets.ttft.count() <= 0 && targets.tpot.count() <= 0;
        // What is late while others have next to nothing, or goes on being late, is not so by their
        // share; and an answer late by chance does not tell of a small one.
        if (most > 1 - kSlackWanted && !missing_ && share_ >= kStep)
            near_at_ = std::max(share_, near_at_ * kForgets);
        missing_ = most > 1;
        const bool known = share_ >= near_at_ * kKnownPart;
        if (none)
            *this = {}; // nothing says what it could spare
        else if (most > 1)
            share_ /= 2;
        else if (most > 1 - kSlackWanted)
            share_ *= 0.95;
        else
            share_ =
                std::min(kMost, share_ + (known ? kStep : kFirstStep) * (1 - kSlackWanted - most));
        return share();
    }

    double share_ = 0;
    double near_at_ = 1 / kKnownPart; // the share at which it came near a target
    bool missing_ = false;            // the last answer, or what was under way, missed a target
    Clock::time_point lowered_;       // for what was under way
};

} // namespace berth
