// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/engines.h"
#include "scheduler/simulate/weight_memory.h"

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace berth::simulate {

class Loaders;

// Programs that berthd did not start: they lease weight sets, publish some, or have weights of
// their own. They live on when berthd dies, connect again, and say what they hold; so do engines
// that have mapped more than their record says. Faults: a publisher dies, fails, seals more than it
// had declared. One thread; all that it is given outlives it.
class Guests {
  public:
    Guests(Stage& stage, Ear& ear, WeightMemory& memory)
        : stage_(stage), ear_(ear), memory_(memory) {}

    // What happens.
    void takes(uint64_t guest, const node::WeightSetId& set, const node::DeviceId& device);
    void leaves(uint64_t guest);
    void publishes(uint64_t guest, const node::DeviceId& device, uint64_t bytes, bool is_private);
    void all_leave();
    // One has come back that maps what berthd may not know of: a guest, or an instance's engine.
    void announce(uint64_t holder, const node::InstanceName& instance);
    void holder_ended(uint64_t holder);

    // What the actor does; loads that are a loader's are not theirs.
    void answered(const node::PublicationAnswered& answer);
    void go(node::LoadId id);
    void refuse(node::LoadId id);
    void kill(node::LoadId id);
    void keep(const node::KeepWeights& keep);
    void berthd_ended();

  private:
    // What one fills, or has filled for itself.
    struct Filling {
        node::WeightSetId set;
        node::DeviceId device;
        uint64_t bytes = 0;
        bool is_private = false;
        uint64_t publication = 0;         // asked under this number
        std::optional<node::LoadId> load; // as berthd calls it
        bool held = false;                // Go was said once: the bytes are there
        bool counted_only = false;        // berthd counts it, and will not have it
        bool sealed = false;
        bool gone = false;  // its end is told as soon as berthd has answered
        uint64_t epoch = 0; // of what was planned for it
    };
    using Fillings = std::map<uint64_t, Filling>; // by guest

    static node::LeaseId lease_of(uint64_t holder, bool lost) {
        return node::LeaseId{holder * 2 + (lost ? 1 : 0)};
    }
    bool listens() const { return ear_.state() != nullptr && ear_.state()->ready; }
    Fillings::iterator find(node::LoadId load);
    void later(uint64_t guest, Nanoseconds delay, std::function<void(Filling&)> deed);
    void ask(uint64_t guest);
    void come_back(uint64_t guest);
    void take_bytes(uint64_t guest, const Filling& filling);
    void end(uint64_t guest, const std::string& how);

    Stage& stage_;
    Ear& ear_;
    WeightMemory& memory_;
    Fillings fillings_;
    uint64_t publications_ = 0;
};

// Engines tell guests' side of what they map beside their own, and loaders what a path makes now.
void join(Engines& engines, const Loaders& loaders, Guests& guests);

} // namespace berth::simulate
