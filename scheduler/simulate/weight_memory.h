// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/stage.h"

#include <map>
#include <set>
#include <string>
#include <utility>

namespace berth::simulate {

// The memory of weights: what the keeper has descriptors of, and what engines and guests have
// mapped, which is there as long as they are, whatever becomes of the keeper and of berthd. Each
// sealed set is a memory of its own, also where the same set was there before. One thread; the
// stage outlives it.
class WeightMemory {
  public:
    using Place = std::pair<node::DeviceId, node::WeightSetId>;
    struct Kept {
        uint64_t memory = 0;
        uint64_t bytes = 0;
        std::string fingerprint;
        std::string path;
        uint32_t rank = 0, ranks = 1; // as its fingerprint says
        node::ModelName model;
        bool pinned = false;
        bool published = false;
    };
    struct Memory {
        Place place;
        uint64_t bytes = 0;
        bool is_kept = true;     // the keeper has it
        bool is_counted = false; // not kept, but berthd has found out that it is there
        bool is_recorded = true; // a full disk may have refused its record
        bool was_let_go = false; // berthd cannot find it out: those who have it say so
    };
    struct Holder {
        uint64_t memory = 0;
        std::string name;
        bool is_known = false; // berthd knows that it has mapped that
    };

    explicit WeightMemory(Stage& stage) : stage_(stage) {}

    // The keeper's side.
    void keep(const Place& place, Kept set);
    void drop(const Place& place); // what berthd lets go, or has counted as lost
    void pin(const Place& place, bool pinned);
    void set_recorded(const Place& place, bool recorded);
    void keeper_ended();
    void berthd_ended();                        // what it had found out it must find out again
    uint64_t keeper() const { return keeper_; } // another number for each that there was
    bool keeper_has_died() const { return keeper_ > 1; }
    void count_lost(const Place& place);
    void forget_uncounted(); // what no record names, those who have it must say
    const std::map<Place, Kept>& kept() const { return kept_; }
    bool is_kept(const node::WeightSetId& set, const node::DeviceId& device) const {
        return kept_.contains({device, set});
    }
    uint64_t memory_of(const node::WeightSetId& set, const node::DeviceId& device) const;

    // The side of those who map. Numbers of guests and of engines do not meet.
    void map(uint64_t holder, uint64_t memory, std::string name, bool is_known);
    void unmap(uint64_t holder);
    void set_known(uint64_t holder, bool is_known);
    const Holder* holder(uint64_t number) const;
    const Memory* find(uint64_t memory) const;

  private:
    bool is_mapped(uint64_t memory) const;
    void settle(uint64_t memory); // its bytes by who has it

    Stage& stage_;
    std::map<Place, Kept> kept_;
    std::map<uint64_t, Memory> memories_;
    std::map<uint64_t, Holder> holders_;
    uint64_t last_ = 0;
    std::set<Place> unrecorded_;
    uint64_t keeper_ = 1;
};

} // namespace berth::simulate
