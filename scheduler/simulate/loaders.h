// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/engines.h"
#include "scheduler/simulate/records.h"
#include "scheduler/simulate/weight_memory.h"

#include <map>
#include <set>
#include <string>
#include <utility>

namespace berth::simulate {

// Simulated loaders, image files, and checkpoints that change. A loader dies with berthd. Faults:
// they fail at planning or on the way, die, stall, seal more than they had planned. One thread; all
// that it is given outlives it.
class Loaders {
  public:
    using Place = WeightMemory::Place;

    // A post may lead to the end of berthd, and so of all loaders: it comes last everywhere.
    Loaders(Stage& stage, const Shape& shape, Ear& ear, WeightMemory& memory);

    // What the actor does.
    void start(const node::StartLoad& load);
    void copy(const node::StartCopy& copy);
    void go(node::LoadId id);
    void refuse(node::LoadId id);
    void kill(node::LoadId id);
    void keep(const node::KeepWeights& keep);
    void drop(const node::DropWeights& drop, Records& records);
    void berthd_ended();

    // What happens.
    void checkpoint_changes(const std::string& path);

    node::WeightSetId set_of(const std::string& path) const; // what its files make now
    node::WeightSetId set_of(const node::LoadKey& key) const;
    const std::map<Place, WeightMemory::Kept>& kept() const { return memory_.kept(); }
    const std::map<node::WeightSetId, std::string>& images() const { return images_; }
    bool is_kept(const node::WeightSetId& set, const node::DeviceId& device) const {
        return memory_.is_kept(set, device);
    }

  private:
    struct Loader {
        node::LoadId id{};
        uint64_t serial = 0;   // ids are used again by the next berthd
        node::DeviceId device; // where its staging lies
        node::DeviceId target; // where its weights will
        node::WeightSetId set;
        std::string path, file;
        uint64_t bytes = 0, overhead = 0;
        bool sealed = false, image = false;
        std::string name; // of its faults
    };
    Loader& add(Loader loader);
    void later(node::LoadId id, Nanoseconds delay, std::function<void(Loader&)> deed);
    void plan(const Loader& loader);
    void fail(Loader& loader, Error error);
    void leave(Loader& loader, const std::string& how);
    std::string owner_of(const Loader& loader) const;

    Stage& stage_;
    const Shape& shape_;
    Ear& ear_;
    WeightMemory& memory_;
    std::map<node::LoadId, Loader> loaders_;
    uint64_t serials_ = 0;
    std::map<node::WeightSetId, std::string> images_;
    std::map<std::string, uint64_t> versions_; // of checkpoints
    std::map<std::string, uint64_t> runs_;     // by what is loaded, copied or dropped
};

} // namespace berth::simulate
