// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/simulate/engines.h"
#include "scheduler/simulate/records.h"

#include <map>
#include <set>
#include <string>
#include <utility>

namespace berth::simulate {

// Simulated loaders, the keeper with the descriptors of sealed sets, image files, checkpoints that
// change, and guests that lease or publish. A loader dies with berthd; what the keeper has stays.
// Faults: they fail at planning or on the way, die, stall, seal more than they had planned. One
// thread; the stage, the shape, the ear and the engines outlive it.
class Loaders {
  public:
    struct Kept {
        uint64_t bytes = 0;
        std::string fingerprint;
        std::string path;
        node::ModelName model;
        bool pinned = false;
        bool published = false;
    };
    using Place = std::pair<node::DeviceId, node::WeightSetId>;

    // A post may lead to the end of berthd, and so of all loaders: it comes last everywhere.
    Loaders(Stage& stage, const Shape& shape, Ear& ear, Engines& engines);

    // What the actor does.
    void start(const node::StartLoad& load);
    void copy(const node::StartCopy& copy);
    void go(node::LoadId id);
    void refuse(node::LoadId id);
    void kill(node::LoadId id);
    void keep(const node::KeepWeights& keep);
    void drop(const node::DropWeights& drop, Records& records);
    void pin(const node::WeightSet& set);
    void answered(const node::PublicationAnswered& answer);
    void berthd_ended();

    // What happens.
    void checkpoint_changes(const std::string& path);
    void guest_takes(uint64_t guest, const node::WeightSetId& set, const node::DeviceId& device);
    void guest_leaves(uint64_t guest);
    void guest_publishes(uint64_t guest, const node::DeviceId& device, uint64_t bytes,
                         bool is_private);

    node::WeightSetId set_of(const std::string& path) const; // what its files make now
    const std::map<Place, Kept>& kept() const { return kept_; }
    const std::map<node::WeightSetId, std::string>& images() const { return images_; }
    bool is_kept(const node::WeightSetId& set, const node::DeviceId& device) const {
        return kept_.contains({device, set});
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
        bool sealed = false, image = false, held_by_guest = false, is_private = false;
        std::string name; // of its faults
    };
    struct Guest {
        Place place;
        uint64_t publication = 0;
    };
    Loader& add(Loader loader);
    void later(node::LoadId id, Nanoseconds delay, std::function<void(Loader&)> deed);
    void plan(Loader& loader);
    void fail(Loader& loader, Error error);
    void leave(Loader& loader, const std::string& how);
    std::string owner_of(const Loader& loader) const;

    Stage& stage_;
    const Shape& shape_;
    Ear& ear_;
    Engines& engines_;
    std::map<node::LoadId, Loader> loaders_;
    uint64_t serials_ = 0;
    std::map<Place, Kept> kept_;
    std::map<node::WeightSetId, std::string> images_;
    std::map<std::string, uint64_t> versions_; // of checkpoints
    std::map<std::string, uint64_t> runs_;     // by what is loaded
    std::map<uint64_t, Guest> guests_;
    std::map<uint64_t, Loader> publishing_; // asked, by publication
};

} // namespace berth::simulate
