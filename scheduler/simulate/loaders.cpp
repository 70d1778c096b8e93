// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/loaders.h"

#include "scheduler/node/tiers.h"

#include <algorithm>

namespace berth::simulate {

using std::chrono::milliseconds;
using std::chrono::seconds;

Loaders::Loaders(Stage& stage, const Shape& shape, Ear& ear, Engines& engines)
    : stage_(stage), shape_(shape), ear_(ear), engines_(engines) {
    engines_.is_resident = [this](const node::WeightSetId& set, const node::DeviceId& device) {
        return is_kept(set, device);
    };
}

node::WeightSetId Loaders::set_of(const std::string& path) const {
    const auto version = versions_.find(path);
    const std::string name = path.substr(path.rfind('/') + 1);
    return node::WeightSetId(name + ".v" +
                             std::to_string(version == versions_.end() ? 1 : version->second));
}

std::string Loaders::owner_of(const Loader& loader) const {
    return "loader " + std::to_string(static_cast<uint64_t>(loader.id)) + " of " + loader.set.value;
}

void Loaders::later(node::LoadId id, Nanoseconds delay, std::function<void(Loader&)> deed) {
    const auto now = loaders_.find(id);
    if (now == loaders_.end())
        return;
    stage_.after(delay, [this, id, serial = now->second.serial, deed = std::move(deed)] {
        if (const auto found = loaders_.find(id);
            found != loaders_.end() && found->second.serial == serial)
            deed(found->second);
    });
}

Loaders::Loader& Loaders::add(Loader loader) {
    loader.serial = ++serials_;
    return loaders_[loader.id] = std::move(loader);
}

void Loaders::start(const node::StartLoad& load) {
    Loader loader;
    loader.id = load.load;
    loader.device = loader.target = load.key.device;
    loader.path = load.key.path;
    loader.set = set_of(load.key.path);
    const std::string what = "load of " + load.key.path + " onto " + load.key.device.value;
    loader.name = what + " " + std::to_string(++runs_[what]);
    const auto model = shape_.models.find(load.key.path);
    loader.bytes = model == shape_.models.end() ? 0 : model->second.bytes;
    loader.overhead = model == shape_.models.end() ? 0 : model->second.overhead_bytes;
    Loader& kept = add(loader);
    Dice dice = stage_.dice.of(kept.name);
    const bool is_there =
        load.source.empty() || (load.source == node::kHostTier ? is_kept(load.from, node::kHostTier)
                                                               : images_.contains(load.from));
    if (model == shape_.models.end())
        return later(load.load, dice.ms(5, 50), [this](Loader& l) {
            fail(l, Error{ErrorCode::kNotFound, l.path + ": no such folder", "NotFound", 0});
        });
    if (!is_there)
        stage_.wrong("weights-vanished", load.from.value + " is to come up from " +
                                             load.source.value + ", where it is no more");
    if (!load.source.empty() && load.from != loader.set)
        return later(load.load, dice.ms(5, 50), [this](Loader& l) {
            fail(l,
                 Error{ErrorCode::kMismatch, "the checkpoint has changed", "CheckpointChanged", 0});
        });
    if (stage_.fault(kept.name + " fails at once", 40))
        return later(load.load, dice.ms(5, 50), [this](Loader& l) {
            fail(l, Error{ErrorCode::kCorrupt, l.path + ": a shard is short", "Corrupt", 0});
        });
    if (stage_.fault(kept.name + " dies at once", 20))
        return later(load.load, dice.ms(5, 50),
                     [this](Loader& l) { leave(l, "killed by SIGKILL"); });
    later(load.load, dice.ms(5, 200), [this](Loader& l) { plan(l); });
}

void Loaders::copy(const node::StartCopy& copy) {
    Loader loader;
    loader.id = copy.load;
    loader.device = copy.source;
    loader.target = copy.to;
    loader.set = copy.set;
    loader.file = copy.file;
    loader.image = copy.to == node::kImageTier;
    const std::string what = "copy of " + copy.set.value + " to " + copy.to.value;
    loader.name = what + " " + std::to_string(++runs_[what]);
    const auto from = kept_.find({copy.source, copy.set});
    if (from == kept_.end())
        stage_.wrong("weights-vanished", copy.set.value + " is to be copied from " +
                                             copy.source.value + ", where it is no more");
    else
        loader.bytes = from->second.bytes;
    // An image's writer has a context at most.
    loader.overhead = !loader.image ? 16ULL << 20
                      : node::is_tier(copy.source) || ear_.state() == nullptr
                          ? 0
                          : node::process_overhead_bytes(*ear_.state(), copy.source) / 2;
    Loader& kept = add(loader);
    Dice dice = stage_.dice.of(kept.name);
    if (stage_.fault(kept.name + " dies", 60))
        return later(copy.load, dice.ms(5, 50),
                     [this](Loader& l) { leave(l, "killed by SIGKILL"); });
    if (!kept.image)
        return later(copy.load, dice.ms(5, 200), [this](Loader& l) { plan(l); });
    stage_.account.set(kept.device, owner_of(kept), kept.overhead);
    later(copy.load, dice.ms(100, 5000), [this](Loader& l) {
        images_[l.set] = l.file;
        later(l.id, milliseconds(0), [this](Loader& d) { leave(d, "exit code 0"); });
        ear_.post(node::ImageWritten{l.id, l.bytes});
    });
}

void Loaders::plan(Loader& loader) {
    ear_.post(node::LoadPlanned{loader.id, "fp-" + loader.set.value, loader.set, loader.bytes,
                                loader.overhead});
}

void Loaders::go(node::LoadId id) {
    const auto found = loaders_.find(id);
    if (found == loaders_.end())
        return;
    Loader& loader = found->second;
    stage_.account.set(loader.device, owner_of(loader), loader.overhead);
    stage_.account.set(loader.target, "weights " + owner_of(loader), loader.bytes);
    stage_.check_account();
    if (loader.is_private)
        return; // it stays its guest's
    Dice dice = stage_.dice.of(loader.name).of("go");
    if (stage_.fault(loader.name + " dies on the way", 40))
        return later(id, dice.ms(10, 500), [this](Loader& l) { leave(l, "killed by SIGKILL"); });
    if (stage_.fault(loader.name + " fails on the way", 30))
        return later(id, dice.ms(10, 500), [this](Loader& l) {
            fail(l, Error{ErrorCode::kIo, "a read failed", "IoFailed", 0});
        });
    if (!loader.held_by_guest && stage_.fault(loader.name + " stalls", 15))
        return;
    const bool lies = stage_.fault(loader.name + " seals more than it had planned", 15);
    later(id, dice.ms(10, 1000), [this](Loader& l) {
        ear_.post(node::LoadProgress{l.id, "reading", l.bytes / 2, l.bytes});
    });
    Nanoseconds time = dice.ms(1000, 6000);
    if (stage_.load_bytes_per_second > 0)
        time = milliseconds(loader.bytes * 1000 / stage_.load_bytes_per_second);
    later(id, time, [this, lies](Loader& l) {
        l.sealed = true;
        ear_.post(node::LoadSealed{l.id, "fp-" + l.set.value, l.set, lies ? l.bytes * 2 : l.bytes});
    });
}

void Loaders::fail(Loader& loader, Error error) {
    later(loader.id, milliseconds(3), [this](Loader& l) { leave(l, "exit code 1"); });
    ear_.post(node::LoadFailed{loader.id, std::move(error)});
}

void Loaders::leave(Loader& loader, const std::string& how) {
    const node::LoadId id = loader.id;
    stage_.account.set(loader.device, owner_of(loader), 0);
    stage_.account.set(loader.target, "weights " + owner_of(loader), 0);
    loaders_.erase(id);
    ear_.post(node::LoaderExited{id, how});
}

void Loaders::refuse(node::LoadId id) {
    later(id, milliseconds(2), [this](Loader& l) { leave(l, "exit code 1"); });
}

void Loaders::kill(node::LoadId id) {
    later(id, milliseconds(2), [this](Loader& l) { leave(l, "killed by SIGKILL"); });
}

void Loaders::keep(const node::KeepWeights& keep) {
    const auto found = loaders_.find(keep.load);
    const Place place{keep.set.device, keep.set.id};
    if (found == loaders_.end() || !found->second.sealed) {
        stage_.wrong("kept-nothing", "weight set " + keep.set.id.value +
                                         " is to be kept, and its "
                                         "loader has sealed none");
        return;
    }
    if (kept_.contains(place))
        stage_.wrong("weights-changed", "weight set " + keep.set.id.value +
                                            " is kept a second time on " + keep.set.device.value);
    Loader& loader = found->second;
    stage_.account.set(loader.target, "weights " + owner_of(loader), 0);
    stage_.account.set(place.first, "weights " + place.second.value, loader.bytes);
    Kept& set = kept_[place];
    set.bytes = loader.bytes;
    set.fingerprint = keep.set.fingerprint;
    set.pinned = keep.set.pinned;
    set.published = loader.held_by_guest;
    if (!keep.set.keys.empty())
        set.path = keep.set.keys.begin()->path;
    if (!keep.set.models.empty())
        set.model = *keep.set.models.begin();
    later(keep.load, milliseconds(5), [this](Loader& l) { leave(l, "exit code 0"); });
}

void Loaders::drop(const node::DropWeights& drop, Records& records) {
    const Place place{drop.device, drop.set};
    if (engines_.maps(drop.set, drop.device))
        stage_.wrong("dropped-under-lease", "weight set " + drop.set.value + " is dropped on " +
                                                drop.device.value + " while an engine maps it");
    for (const auto& [number, guest] : guests_)
        if (guest.place == place)
            stage_.wrong("dropped-under-lease", "weight set " + drop.set.value + " is dropped on " +
                                                    drop.device.value + " while guest " +
                                                    std::to_string(number) + " maps it");
    if (drop.device == node::kImageTier)
        images_.erase(drop.set);
    kept_.erase(place);
    stage_.account.set(drop.device, "weights " + drop.set.value, 0);
    stage_.after(milliseconds(4), [this, drop, &records] {
        if (ear_.state() == nullptr)
            return;
        records.forget_weights(drop.set, drop.device);
        ear_.post(node::WeightsDropped{drop.set, drop.device});
    });
}

void Loaders::pin(const node::WeightSet& set) {
    if (const auto found = kept_.find({set.device, set.id}); found != kept_.end())
        found->second.pinned = set.pinned;
}

// Loaders live by their connection; guests end with theirs.
void Loaders::berthd_ended() {
    for (const auto& [id, loader] : loaders_) {
        stage_.account.set(loader.device, owner_of(loader), 0);
        stage_.account.set(loader.target, "weights " + owner_of(loader), 0);
    }
    loaders_.clear();
    publishing_.clear();
    guests_.clear();
}

void Loaders::checkpoint_changes(const std::string& path) {
    const node::WeightSetId old = set_of(path);
    uint64_t& version = versions_.try_emplace(path, 1).first->second;
    ++version;
    // It is noticed by the next who looks; here that is at once.
    std::vector<node::DeviceId> devices;
    for (const auto& [place, set] : kept_)
        if (place.second == old && !node::is_tier(place.first))
            devices.push_back(place.first);
    for (const node::DeviceId& device : devices)
        ear_.post(node::WeightsStale{old, device, path, "size"});
}

void Loaders::guest_takes(uint64_t guest, const node::WeightSetId& set,
                          const node::DeviceId& device) {
    const node::NodeState* state = ear_.state();
    if (state == nullptr || guests_.contains(guest))
        return;
    const node::WeightSet* found = node::find_set(*state, set, device);
    if (found == nullptr || found->dropping || !is_kept(set, device))
        return; // the actor looks before it hands one out
    guests_[guest].place = {device, set};
    ear_.post(node::LeaseOpened{node::LeaseId{guest}, set, device, "guest", {}});
}

void Loaders::guest_leaves(uint64_t guest) {
    if (guests_.erase(guest) > 0)
        ear_.post(node::LeaseClosed{node::LeaseId{guest}});
}

void Loaders::guest_publishes(uint64_t guest, const node::DeviceId& device, uint64_t bytes,
                              bool is_private) {
    if (ear_.state() == nullptr || publishing_.contains(guest))
        return;
    Loader& loader = publishing_[guest];
    loader.device = loader.target = device;
    loader.set = node::WeightSetId("published" + std::to_string(guest % 3));
    loader.bytes = bytes;
    loader.held_by_guest = true;
    loader.is_private = is_private;
    loader.name = "publication " + std::to_string(guest);
    ear_.post(node::PublishRequested{
        guest, loader.set, device, {}, "guest", {}, bytes, 0, false, is_private});
}

void Loaders::answered(const node::PublicationAnswered& answer) {
    const auto found = publishing_.find(answer.publication);
    if (found == publishing_.end())
        return;
    Loader loader = found->second;
    publishing_.erase(found);
    if (!answer.load)
        return;
    loader.id = *answer.load;
    add(loader);
    if (loader.is_private) // the guest holds it for a while
        later(loader.id, stage_.dice.of(loader.name).ms(500, 20'000), [this](Loader& l) {
            stage_.account.set(l.target, "weights " + owner_of(l), 0);
            const node::LoadId id = l.id;
            loaders_.erase(id);
            ear_.post(node::PrivateLoadEnded{id});
        });
}

} // namespace berth::simulate
