// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/ranks/crew.h"
#include "engine_shim/reference/ranks/follower.h"
#include "tests/engine/command_host.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Ranks of one process, a thread each: berthd, the store and the model are played.
namespace berth::engine {

// Names and texts in memory.
class MemoryStore final : public RankStore {
  public:
    Status set(const std::string& name, const std::string& text) override {
        const std::lock_guard lock(mutex_);
        texts_[name] = text;
        changed_.notify_all();
        return {};
    }
    Result<std::string> get(const std::string& name, Nanoseconds timeout) override {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, timeout, [&] { return texts_.contains(name); }))
            return fail(ErrorCode::kDeadlineExceeded, "nobody has written '" + name + "'");
        return texts_[name];
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::string> texts_;
};

// berthd and the gate, played by the test's thread.
class PlayedHost final : public CommandHost {
  public:
    bool must_yield() const override {
        const std::lock_guard lock(mutex_);
        return closed_ || paused_ || !commands_.empty();
    }
    bool yield_here() override {
        std::unique_lock lock(mutex_);
        yields_ += closed_ ? 1 : 0;
        return sleep_here(lock);
    }
    void raise_gate() override { ++demand; }
    void lower_gate() override { --demand; }
    void note_progress(uint64_t, Nanoseconds) override {}
    void between_steps(Nanoseconds) override {}
    void step_begins() override { steps = true; }
    void step_ends() override { steps = false; }
    void serves_as(uint64_t) override {}
    void has_left_socket() override {}
    uint64_t gate_pauses() const override { return 0; }
    void report(const Load&) override {}
    void report_batch(uint64_t, uint64_t) override {}
    void note_first_token(Nanoseconds) override {}
    void note_pace(Nanoseconds) override {}
    void note_awaited(Nanoseconds) override {}
    void note_answered(Nanoseconds, Nanoseconds) override {}

    // The test's side.
    uint64_t tell(protocol::CommandKind kind, uint64_t grant_bytes = 0) {
        const std::lock_guard lock(mutex_);
        protocol::Command command;
        command.kind = kind;
        command.grant_bytes = grant_bytes;
        return push(std::move(command));
    }
    std::optional<protocol::CommandDone> answer(uint64_t id, Nanoseconds patience) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, patience, [&] { return done_.contains(id); }))
            return std::nullopt;
        return done_[id];
    }
    std::atomic<int> demand{0};
    std::atomic<bool> steps{false}; // its clock runs
    bool await_sleeper(Nanoseconds patience) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, patience, [&] { return yields_ > 0; });
    }

  private:
    int yields_ = 0;
};

// Remembers what rank 0 had done here. `stands`: whether the next steps come to a standstill.
class RecordedWork final : public FollowerWork {
  public:
    Status step(std::span<const StepItem> items, const LayerHook& hook) override {
        note("step " + std::to_string(items.size()));
        if (stands && !hook(1))
            note("given up");
        return {};
    }
    Status canary(uint32_t block) override {
        note("canary " + std::to_string(block));
        return {};
    }
    Status copy_blocks(std::span<const BlockMove> moves) override {
        note("move " + std::to_string(moves.size()));
        return {};
    }
    Status resize(uint64_t arena_bytes) override {
        note("resize " + std::to_string(arena_bytes));
        if (arena_bytes > most)
            return fail(ErrorCode::kResourceExhausted, "no more memory", "OutOfMemory");
        bytes = arena_bytes;
        return {};
    }
    Status save(uint64_t number, std::span<const uint32_t> blocks) override {
        note("save " + std::to_string(number) + ":" + std::to_string(blocks.size()));
        return {};
    }
    Status bring_back(uint64_t number, std::span<const uint32_t> blocks) override {
        note("bring back " + std::to_string(number) + ":" + std::to_string(blocks.size()));
        return {};
    }
    void forget(uint64_t number) override { note("forget " + std::to_string(number)); }
    uint64_t grant_bytes() const override { return bytes; }
    uint64_t host_bytes() const override { return 0; }

    std::vector<std::string> seen() {
        const std::lock_guard lock(mutex_);
        return seen_;
    }

    std::atomic<uint64_t> most{UINT64_MAX};
    std::atomic<uint64_t> bytes{0};
    std::atomic<bool> stands{false};

  private:
    void note(std::string what) {
        const std::lock_guard lock(mutex_);
        seen_.push_back(std::move(what));
    }
    std::mutex mutex_;
    std::vector<std::string> seen_;
};

} // namespace berth::engine
