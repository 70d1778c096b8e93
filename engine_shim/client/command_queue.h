// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"
#include "engine_shim/protocol/messages.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

namespace berth {

// berthd's commands on their way to the engine's loop, and what they leave behind: paused,
// offloaded. Commands that no loop has taken are forgotten when their connection ends, since the
// next berthd asks again for what it still wants. Thread-safe.
class CommandQueue {
  public:
    // Answers a command on the connection it came by; called under the queue's lock, must not call
    // back.
    using Answer = std::function<void(const protocol::CommandDone&, uint64_t epoch)>;
    explicit CommandQueue(Answer answer) : answer_(std::move(answer)) {}

    void push(protocol::Command command, uint64_t epoch);
    void forget_before(uint64_t epoch);

    std::optional<protocol::Command> next();
    // False for an id that was not handed out. Notes what the command changed.
    bool complete(const protocol::CommandDone& done);

    bool paused() const { return paused_.load(std::memory_order_acquire); }
    // Whether a step must look up: something waits, or a Pause holds.
    bool pressing() const { return waiting_.load(std::memory_order_acquire) != 0 || paused(); }
    bool has_next() const { return waiting_.load(std::memory_order_acquire) != 0; }
    const char* held() const; // "", "Paused", "Offloaded", "Standby"
    void set_standby(bool standby) { standby_.store(standby, std::memory_order_release); }

    void wait(Nanoseconds timeout);
    void notify();

    // For yield_here: answers the Pause and Resume at the head of the queue and says what holds.
    enum class Outlook { kOther, kPaused, kFree }; // kOther: another command waits
    Outlook settle(uint64_t grant_bytes);
    void wait_for_change(Nanoseconds timeout); // until a command comes

  private:
    struct Entry {
        protocol::Command command;
        uint64_t epoch = 0;
    };
    void note(protocol::CommandKind kind);

    const Answer answer_;
    mutable std::mutex mutex_; // guards all below; a Link's lock may be taken while it is held
    std::condition_variable changed_;
    std::deque<Entry> queue_;
    std::map<uint64_t, Entry> taken_; // handed out, not complete
    bool notified_ = false;
    bool offloaded_ = false;
    std::atomic<size_t> waiting_{0};
    std::atomic<bool> paused_{false};
    std::atomic<bool> standby_{false};
};

} // namespace berth
