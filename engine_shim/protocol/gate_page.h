// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "base/units.h"

#include <atomic>
#include <cstdint>
#include <memory>

// The gate: one shared page (a memfd) per device through which a low-priority instance learns,
// without a system call, that a higher class has work.
//
// Slot 0 is berthd's; each instance that may raise has another. A slot carries its raiser's class
// value and a demand count (requests in flight). A raiser takes the write lock of its slot's bytes
// on an open file description of its own (F_OFD_SETLK on a reopened descriptor); the kernel drops
// the lock with the raiser, and a slot without a lock does not count. So the gate of a dead raiser
// opens by itself, also while berthd is dead.
//
// `generation` changes after every raise and lower; sleepers wait on it (futex) and look again
// every 100 ms, since a raiser's death wakes nobody. Only a lower to 0 wakes them: nothing else can
// open the gate.
namespace berth {

inline constexpr uint32_t kGateMagic = 0x42475431; // "BGT1"
inline constexpr uint32_t kGateSlots = 63;
inline constexpr uint32_t kGateBytes = 4096;

// Who gives lower classes their share of the time while a slot has demand.
enum class Turns : uint32_t {
    kTaken, // they take it by their own clocks
    kGiven, // the raiser gives it, between its steps
    kUnderWay,
};
struct GateSlot {
    std::atomic<uint32_t> demand;
    uint32_t pid;
    int64_t class_value;
    uint64_t raised_at_ns; // CLOCK_MONOTONIC of the last rise from 0
    // What its latency targets leave to lower classes while it works, in thousandths of the time.
    std::atomic<uint32_t> spare;
    std::atomic<Turns> turns; // while one is under way the demand does not close the gate
    uint64_t reserved[4];
};
// GatePage.share of a page whose raisers say it themselves (GateSlot.spare).
inline constexpr uint32_t kShareBySlo = 0xffffffff;
struct GatePage {
    uint32_t magic;
    uint32_t version;
    std::atomic<uint32_t> generation;
    // What lower classes may have of the time while the gate is closed: thousandths, or
    // kShareBySlo. 0: nothing.
    std::atomic<uint32_t> share;
    uint64_t reserved[6];
    GateSlot slots[kGateSlots];
};
static_assert(sizeof(GateSlot) == 64 && sizeof(GatePage) == kGateBytes);

// Makes the page of a device: berthd's. The descriptor goes to the keeper and to raisers;
// `read_only` is what the others get.
struct GateFds {
    UniqueFd writable;
    UniqueFd read_only;
};
Result<GateFds> create_gate_page();
// From a writable descriptor that the keeper returned.
Result<GateFds> adopt_gate_page(UniqueFd writable);

// berthd's: what the policy's batchShareWhenBusy says, at most 1000, or kShareBySlo.
Status set_gate_share(const GateFds& fds, uint32_t share);

// A raiser's side. raise() and lower() are thread-safe and take no system call but the futex wake
// of a lower to 0. Turns are one thread's.
class GateRaiser {
  public:
    GateRaiser() = default;
    GateRaiser(GateRaiser&&) noexcept;
    GateRaiser& operator=(GateRaiser&&) noexcept;
    ~GateRaiser(); // lowers all it has raised and lets the slot go
    // Takes the slot's lock; AlreadyExists when another live raiser has it.
    static Result<GateRaiser> open(const UniqueFd& writable, uint32_t slot, int64_t class_value);
    void raise();
    void lower();
    uint32_t demand() const;
    void set_spare(uint32_t thousandths); // 0 until it is first said
    // What of the time is to be given to lower classes while this raiser has demand, thousandths.
    uint32_t share_to_give() const;
    bool spares_by_targets() const; // that is what set_spare() said: kShareBySlo
    // Lets those through who wait at the gate, and returns whether anybody did; if nobody did the
    // turn is over already. Whoever has called this once gives all turns itself.
    bool begin_turn();
    void end_turn();
    explicit operator bool() const { return page_ != nullptr; }

  private:
    GatePage* page_ = nullptr;
    uint32_t slot_ = 0;
    UniqueFd lock_fd_;
};

// A sleeper's side. Thread-safe.
class GateWatcher {
  public:
    GateWatcher() = default;
    GateWatcher(GateWatcher&&) noexcept;
    GateWatcher& operator=(GateWatcher&&) noexcept;
    ~GateWatcher();
    // Closed by demand of any class value above `class_value`.
    static Result<GateWatcher> open(const UniqueFd& fd, int64_t class_value);
    // A few loads, no system call while nobody raises; a raised slot's lock is looked at (one
    // fcntl), so a dead raiser does not count.
    bool closed() const;
    // Thousandths of the time that this watcher may run, by its own clock, although it is closed; 0
    // where all that raise give turns.
    uint32_t share() const;
    // Sleeps until open, `wake` was called, or `timeout`; returns whether it is open.
    bool wait(Nanoseconds timeout) const;
    // Makes one wait() return at once, now or next time (a command has come in).
    void wake() const;
    // Changes whenever the gate may have closed or opened; null without a page.
    const std::atomic<uint32_t>* changes() const {
        return page_ == nullptr ? nullptr : &page_->generation;
    }
    explicit operator bool() const { return page_ != nullptr; }

  private:
    // Private to this watcher, at an address that moving it does not change.
    struct Local {
        std::atomic<uint32_t> woken{0};
        std::atomic<uint64_t> open_at; // the generation at which it was last found open
    };
    const GatePage* page_ = nullptr;
    int64_t class_value_ = 0;
    UniqueFd fd_;
    std::unique_ptr<Local> local_;
};

} // namespace berth
