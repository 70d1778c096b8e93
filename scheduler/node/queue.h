// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/board.h"

#include <string>
#include <unordered_map>
#include <vector>

// Inside scheduler/node/ only: the queue of those who wait for memory, in one pass of the planner.
namespace berth::node {

// What was said last to one of a shape; it holds while the board has not changed.
struct Refusal {
    std::string reason, message; // no reason: nothing was
    uint64_t changes = 0;
    bool lent = false;
};

// Many alike wait for the same. Those of one shape need the same wherever they may run, and are
// refused for the same reasons, so that both are found out once for all of them.
class Queue {
  public:
    struct Waiting {
        Instance* i = nullptr;
        int64_t priority = 0;
        size_t shape = 0;
        bool claims = false; // it keeps room for itself
    };

    // The state and the board outlive it.
    Queue(NodeState& state, Board& board);
    const std::vector<Waiting>& all() const { return all_; } // as they are served
    Refusal& refusal(const Waiting& one) { return refusals_[one.shape]; }
    // Its claims go from one sum of the board's rows to another; nullptr: from or to nowhere.
    void move_claims(const Waiting& one, uint64_t Board::Row::* from, uint64_t Board::Row::* to);

  private:
    size_t shape_of(const Instance& i);

    struct Hash {
        size_t operator()(const Instance* i) const;
    };
    struct Same {
        bool operator()(const Instance* a, const Instance* b) const;
    };
    Board& board_;
    std::unordered_map<const Instance*, size_t, Hash, Same> shapes_;
    std::vector<std::vector<Board::Claim>> claims_; // of a shape
    std::vector<Refusal> refusals_;                 // of a shape
    std::vector<Waiting> all_;
};

} // namespace berth::node
