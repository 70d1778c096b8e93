// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"
#include "engine_shim/protocol/messages.h"
#include "engine_shim/reference/model/rank_work.h"
#include "engine_shim/reference/ranks/rank_links.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace berth::engine {

// Rank 0's hand on the others. It tells them each thing before rank 0 does it itself (RankWork),
// and knows what berthd has told them:
//
// - A Pause of any rank holds all: it is answered by that rank once no step is under way, and no
//   step begins until that rank has its Resume.
// - Offload, Restore, Shrink and Grow are carried out when all ranks have the same one, between two
//   steps (agreed()). Until then steps go on.
// - Within a step all stand still where any rank wished to (RankGroup); settle() collects whether
//   each would go on. A rank that sleeps at its gate there sleeps outside of collectives.
//
// The engine's thread, but for what says otherwise.
class Lead final : public RankWork, public RankEars {
  public:
    explicit Lead(RankLinks& links);
    ~Lead() override;

    // The links' thread calls `wake` when the engine's loop should look up, and `end_asked` when
    // somebody asked another rank to end; both are short and take no lock under which Lead is
    // called. Until `this` is destroyed.
    class Calls {
      public:
        Calls(Lead& lead, std::function<void()> wake, std::function<void()> end_asked)
            : lead_(lead) {
            lead_.set_calls(std::move(wake), std::move(end_asked));
        }
        Calls(const Calls&) = delete;
        Calls& operator=(const Calls&) = delete;
        ~Calls() { lead_.set_calls({}, {}); }

      private:
        Lead& lead_;
    };
    void on_note(uint32_t from, Note note) override;

    // Waits until the others have their part of the model and of the memory. Mismatch when theirs
    // differs in size.
    Status await_ready(uint64_t arena_bytes, uint64_t block_bytes);

    // False: a rank holds all, or is lost. Else a step may be told, until end_step().
    bool begin_step();
    void end_step();
    // Where all stand still: `look` is this rank's own word, asked again while it waits for others
    // and `wish` says that something is there to be looked at.
    bool settle(const std::function<bool()>& look, const std::function<bool()>& wish);
    // Told by settle(): this rank computes nothing while it waits for others (true), and does
    // again.
    void on_wait(std::function<void(bool waits)> told) { on_wait_ = std::move(told); }
    bool held() const;       // by a Pause of another rank; any thread
    bool wants_hold() const; // another rank has a Pause to answer; any thread

    // Whether all have this command; then they are told to carry it out. `missing`: who has not.
    bool agreed(const protocol::Command& command, std::string& missing);
    // The start is over: from now on every rank's gate holds all of them.
    void loop_begins() { links_.send_to_others({NoteKind::kLoop, {}, {}}); }
    // Demand is the whole instance's: lower classes give way on every rank's device. Any thread.
    void raise_gate() { links_.send_to_others({NoteKind::kRaise, {}, {}}); }
    void lower_gate() { links_.send_to_others({NoteKind::kLower, {}, {}}); }
    // It was carried out here, or failed.
    void done(const protocol::Command& command, const std::optional<Error>& error);

    Status step(std::span<const StepItem> items, const LayerHook& hook) override;
    Status canary(uint32_t block) override;
    Status copy_blocks(std::span<const BlockMove> moves) override;
    Status resize(uint64_t arena_bytes) override;
    Status save(uint64_t number, std::span<const uint32_t> blocks) override;
    Status bring_back(uint64_t number, std::span<const uint32_t> blocks) override;
    void forget(uint64_t number) override;

    // A collective failed: ranks are no longer at the same place, nothing more is told. Waits a
    // moment, so that the links can say which rank is gone.
    void broken();
    // The instance ends well: so do the others.
    void end();

  private:
    struct Command {
        protocol::CommandKind kind = protocol::CommandKind::kPause;
        uint64_t grant_bytes = 0;
    };
    struct Other {
        std::optional<Command> front; // of berthd's commands to it
        bool holds = false;
        bool free = false, goes_on = false; // where all stand still
        bool acknowledged = false;
        std::optional<Error> error;
        std::vector<uint32_t> ready;
    };
    void set_calls(std::function<void()> wake, std::function<void()> end_asked);
    Status call(const Note& note);
    void hear_has(uint32_t from, const Note& note);
    void grant_hold(uint32_t rank);
    Other& other(uint32_t rank) { return others_[rank - 1]; }

    RankLinks& links_;
    std::function<void(bool)> on_wait_;
    mutable std::mutex mutex_; // guards all below
    std::condition_variable changed_;
    std::function<void()> wake_, end_asked_;
    std::vector<Other> others_;
    bool moving_ = false;
    bool broken_ = false;
};

} // namespace berth::engine
