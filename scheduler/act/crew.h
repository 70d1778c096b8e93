// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/action.h"
#include "scheduler/node/event.h"

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace berth {

// The processes of an instance of several ranks, as the one process that the node decides about:
// it hears what happens to each rank, as the event that it would be of an instance of its own, and
// tells the node what that is for the instance.
//
// - All are started, or none: ProcessStarted when the last one is, ProcessStartFailed when those
//   that were are gone again.
// - It is connected while all are; it is what rank 0 says that it is. Where one has lost its
//   connection and is back, the others connect anew too: what they have said of themselves is older
//   than the commands since. A command is answered when all have answered it, by the first error,
//   if any.
// - The end of one is the end of all: the others are killed unless the end was asked for, and
//   ProcessExited, told when the last one has ended, names the one that was first. What ends
//   because another rank is gone says so (exit code 3, or RankLost), and is never named.
//
// Thread rule: the decision thread; nothing blocks. What it tells may lead to anything, its own
// replacement included: who calls hear() holds it.
class Crew {
  public:
    struct Hands {
        std::function<void(node::Event)> tell;
        // SIGKILL.
        std::function<void(uint32_t rank, const node::ProcessRef& process)> end;
        // Its connection is closed, so that it says anew where it is.
        std::function<void(uint32_t rank)> renew;
        // Once, unless the crew is over by then.
        std::function<void(Nanoseconds delay, std::function<void()> deed)> later;
        std::function<void()> over; // before the last event is told
        std::function<std::string(uint32_t rank)> log_of;
        std::function<bool()> comes_up; // it is to run, by the node's word
    };
    // Others are told of what lingers after this time, as of a single process.
    static constexpr Nanoseconds kLingering = std::chrono::milliseconds(100);
    // From a rank's end that was asked for to SIGKILL for the others.
    static constexpr Nanoseconds kEndTime = std::chrono::seconds(15);
    static constexpr size_t kCommandsMax = 16; // not answered by all

    // About to be started; `tokens` are the hashes of their tokens.
    Crew(node::InstanceName name, std::vector<std::string> tokens, Hands hands);
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    // Found by another berthd than the one that has started them: pid 0 is not known. The ranks of
    // `gone` are there no more: the others are ended.
    void adopted(const std::vector<node::ProcessRef>& processes, const std::vector<uint32_t>& gone);

    void hear(uint32_t rank, node::Event event);
    // It is sent to the ranks that asked_of() counts.
    void asked(const node::SendCommand& command);
    uint32_t asked_of(node::CommandKind kind) const {
        return kind == node::CommandKind::kServe ? 1 : size();
    }
    void end_asked() { expects_end_ = true; }

    uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
    const std::string& token_sha256(uint32_t rank) const { return ranks_.at(rank).token_sha256; }
    const node::ProcessRef& process(uint32_t rank) const { return ranks_.at(rank).process; }
    const node::Phases& phases(uint32_t rank) const { return ranks_.at(rank).phases; }
    const std::string& weights(uint32_t rank) const { return ranks_.at(rank).weights; }

  private:
    struct Rank {
        std::string token_sha256;
        node::ProcessRef process;
        bool begun = false; // its start has come out one way or the other
        bool failed = false;
        std::optional<node::ProcessExited> end;
        bool says_lost = false; // it ends since another has
        std::string failure;    // its own last words
        std::optional<node::SessionOpened> session;
        bool told = false; // what that says was told: commands may have changed it since
        node::Phases phases;
        std::string weights;
        bool lives() const { return process && !end; }
    };
    struct Asked {
        node::CommandId id{};
        uint32_t of = 0;
        std::map<uint32_t, node::CommandDone> answers;
    };
    struct Hearing;

    void started(uint32_t rank, const node::ProcessStarted& event);
    void start_failed(uint32_t rank, const node::ProcessStartFailed& event);
    void finish_start();
    void ended(uint32_t rank, const node::ProcessExited& event);
    void end_rest();
    void tell_lingering();
    void finish();
    uint32_t cause() const;
    std::string words_of_end(uint32_t rank) const;
    void opened(uint32_t rank, const node::SessionOpened& event);
    void renew_told();
    void join_sessions();
    void closed(uint32_t rank);
    void changed(uint32_t rank, node::EngineStateChanged event);
    void answered(uint32_t rank, const node::CommandDone& event);
    bool is_connected() const;
    std::string who(uint32_t rank) const;

    const node::InstanceName name_;
    const Hands hands_;
    std::vector<Rank> ranks_;
    std::vector<uint32_t> ends_; // in their order
    std::optional<Error> start_error_;
    bool told_started_ = false;
    bool told_open_ = false;
    bool told_lingering_ = false;
    bool expects_end_ = false;
    bool over_ = false;
    std::optional<node::EngineStateChanged> kept_; // rank 0's, until all are connected
    std::deque<Asked> asked_;
};

} // namespace berth
