// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/main/engine_host.h"
#include "engine_shim/reference/model/rank_work.h"
#include "engine_shim/reference/ranks/rank_links.h"
#include "engine_shim/reference/ranks/ranked_host.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

namespace berth::engine {

// What a rank has besides what rank 0 does to it.
class FollowerWork : public RankWork {
  public:
    virtual uint64_t grant_bytes() const = 0;
    virtual uint64_t host_bytes() const = 0; // for saved KV
};

// The loop of every rank but the first: does what rank 0 says in the order in which it says it, and
// keeps berthd's commands until rank 0 says that all ranks have them. run() is this rank's engine
// thread, the only one that calls `work`. All parts outlive it.
class Follower final : public RankEars {
  public:
    struct Parts {
        RankLinks& links;
        EngineHost& host;
        FollowerWork& work;
    };
    explicit Follower(Parts parts, Nanoseconds agree_wait = 2 * kAgreeWait);

    ~Follower() override;

    // Tells rank 0 that this rank has its part of the model and of the memory.
    void say_ready(uint64_t arena_bytes, uint64_t block_bytes);
    // What is done as soon as rank 0's loop begins: until then its start's own waits count.
    void on_loop(std::function<void()> begins) { loop_begins_ = std::move(begins); }
    // Until rank 0 ends the instance, or until a collective fails (the error).
    Status run();
    // Asks rank 0 to end the instance. Safe in a signal handler.
    void ask_end() { end_asked_ = true; }

    void on_note(uint32_t from, Note note) override;

  private:
    using Clock = std::chrono::steady_clock;
    std::optional<Note> next_note();
    Note await_note();
    void take_commands();
    void tell_front();
    void drop_old();
    void complete(const protocol::Command& command, std::optional<Error> error);
    Status obey(const Note& note);
    Status compute(const Note& note);
    bool stand_still();
    void acknowledge(const Status& status);
    void answer_pause();
    void finish(const Note& done);
    void check_end_asked();

    Parts parts_;
    std::function<void()> loop_begins_;
    const Nanoseconds agree_wait_;
    std::atomic<bool> end_asked_{false};
    std::mutex mutex_; // guards the two below
    std::condition_variable changed_;
    std::deque<Note> notes_;
    // Engine thread alone:
    std::deque<std::pair<protocol::Command, Clock::time_point>> commands_; // with when they came
    bool front_told_ = false;
    std::optional<protocol::Command> obeying_;
    Clock::time_point obeying_since_;
    std::optional<Clock::time_point> end_asked_at_;
    uint64_t steps_ = 0;
    bool ended_ = false;
};

} // namespace berth::engine
