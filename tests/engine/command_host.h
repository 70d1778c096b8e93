// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/main/engine_host.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace berth::engine {

// The queue of berthd's commands as an engine's loop sees it, played by the test's thread: what a
// FakeHost and a rank's PlayedHost share.
class CommandHost : public EngineHost {
  public:
    std::optional<protocol::Command> next_command() override {
        const std::lock_guard lock(mutex_);
        if (commands_.empty())
            return std::nullopt;
        protocol::Command command = commands_.front();
        commands_.pop_front();
        taken_[command.id] = command.kind;
        return command;
    }
    void complete(protocol::CommandDone done) override {
        const std::lock_guard lock(mutex_);
        if (taken_[done.id] == protocol::CommandKind::kPause)
            paused_ = true;
        if (taken_[done.id] == protocol::CommandKind::kResume)
            paused_ = false;
        done_[done.id] = std::move(done);
        changed_.notify_all();
    }
    bool paused() const override {
        const std::lock_guard lock(mutex_);
        return paused_;
    }
    void wait(Nanoseconds timeout) override {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, timeout, [&] { return notified_ || !commands_.empty(); });
        notified_ = false;
    }
    void notify() override {
        const std::lock_guard lock(mutex_);
        notified_ = true;
        changed_.notify_all();
    }

    void close_gate(bool closed) {
        const std::lock_guard lock(mutex_);
        closed_ = closed;
        changed_.notify_all();
    }

  protected:
    // With mutex_ held. Its id.
    uint64_t push(protocol::Command command) {
        command.id = ++next_id_;
        commands_.push_back(command);
        changed_.notify_all();
        return command.id;
    }
    // With mutex_ held by `lock`: until the gate and a Pause let it go on. False: a command waits.
    bool sleep_here(std::unique_lock<std::mutex>& lock) {
        changed_.notify_all();
        changed_.wait(lock, [&] { return !(closed_ || paused_) || !commands_.empty(); });
        return commands_.empty();
    }

    mutable std::mutex mutex_; // guards all below
    std::condition_variable changed_;
    std::deque<protocol::Command> commands_;
    std::map<uint64_t, protocol::CommandDone> done_;
    bool paused_ = false;
    bool closed_ = false;

  private:
    std::map<uint64_t, protocol::CommandKind> taken_;
    uint64_t next_id_ = 0;
    bool notified_ = false;
};

} // namespace berth::engine
