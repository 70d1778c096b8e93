// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/loaders.h"

#include "scheduler/node/tiers.h"

#include <algorithm>
#include <tuple>

namespace berth::simulate {

using std::chrono::milliseconds;
using std::chrono::seconds;

Loaders::Loaders(Stage& stage, const Shape& shape, Ear& ear, WeightMemory& memory)
    : stage_(stage), shape_(shape), ear_(ear), memory_(memory) {}

node::WeightSetId Loaders::set_of(const std::string& path) const {
    const auto version = versions_.find(path);
    const std::string name = path.substr(path.rfind('/') + 1);
    return node::WeightSetId(name + ".v" +
                             std::to_string(version == versions_.end() ? 1 : version->second));
}

std::string Loaders::owner_of(const Loader& loader) const {
    return "loader " + std::to_string(static_cast<uint64_t>(loader.id)) + " of " + loader.set.value;
}

node::WeightSetId Loaders::set_of(const node::LoadKey& key) const {
    node::WeightSetId set = set_of(key.path);
    if (key.ranks > 1)
        set.value += ".r" + std::to_string(key.rank) + "of" + std::to_string(key.ranks);
    return set;
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
    loader.set = set_of(load.key);
    const std::string what =
        "load of " + load.key.path +
        (load.key.ranks > 1 ? " rank " + std::to_string(load.key.rank) : std::string()) + " onto " +
        load.key.device.value;
    loader.name = what + " " + std::to_string(++runs_[what]);
    const auto model = shape_.models.find(load.key.path);
    loader.bytes = model == shape_.models.end() ? 0 : model->second.bytes / load.key.ranks;
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
    const auto from = kept().find({copy.source, copy.set});
    if (from == kept().end())
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
    if (stage_.fault(kept.name + " finds the disk full", 30))
        return later(copy.load, dice.ms(5, 50), [this](Loader& l) {
            fail(l, Error{ErrorCode::kResourceExhausted, "no space left", "DiskFull", 0});
        });
    if (!kept.image) {
        const bool other = stage_.fault(kept.name + " plans another set", 15);
        const bool huge = stage_.fault(kept.name + " plans more than there is", 15);
        return later(copy.load, dice.ms(5, 200), [this, other, huge](Loader& l) {
            Loader planned = l;
            if (other)
                planned.set = node::WeightSetId("another");
            if (huge)
                planned.overhead = 100ULL << 40;
            plan(planned);
        });
    }
    stage_.account.set(kept.device, owner_of(kept), kept.overhead);
    later(copy.load, dice.ms(100, 5000), [this](Loader& l) {
        images_[l.set] = l.file;
        later(l.id, milliseconds(0), [this](Loader& d) { leave(d, "exit code 0"); });
        ear_.post(node::ImageWritten{l.id, l.bytes});
    });
}

void Loaders::plan(const Loader& loader) {
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
    Dice dice = stage_.dice.of(loader.name).of("go");
    if (stage_.fault(loader.name + " dies on the way", 40))
        return later(id, dice.ms(10, 500), [this](Loader& l) { leave(l, "killed by SIGKILL"); });
    if (stage_.fault(loader.name + " fails on the way", 30))
        return later(id, dice.ms(10, 500), [this](Loader& l) {
            fail(l, Error{ErrorCode::kIo, "a read failed", "IoFailed", 0});
        });
    if (stage_.fault(loader.name + " stalls", 15))
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
    if (found == loaders_.end())
        return; // a guest's
    if (!found->second.sealed) {
        stage_.wrong("kept-nothing", "weight set " + keep.set.id.value +
                                         " is to be kept, and its "
                                         "loader has sealed none");
        return;
    }
    Loader& loader = found->second;
    stage_.account.set(loader.target, "weights " + owner_of(loader), 0);
    WeightMemory::Kept set;
    set.bytes = loader.bytes;
    set.fingerprint = keep.set.fingerprint;
    set.pinned = keep.set.pinned;
    if (!keep.set.keys.empty())
        std::tie(set.path, set.rank, set.ranks) = std::tie(
            keep.set.keys.begin()->path, keep.set.keys.begin()->rank, keep.set.keys.begin()->ranks);
    if (!keep.set.models.empty())
        set.model = *keep.set.models.begin();
    memory_.keep({keep.set.device, keep.set.id}, std::move(set));
    later(keep.load, milliseconds(5), [this](Loader& l) { leave(l, "exit code 0"); });
}

void Loaders::drop(const node::DropWeights& drop, Records& records) {
    const std::string what = "drop of " + drop.set.value + " on " + drop.device.value;
    if (stage_.fault(what + " " + std::to_string(++runs_[what]) + " fails", 40)) {
        stage_.after(milliseconds(4), [this, drop] {
            ear_.post(node::DropFailed{drop.set, drop.device,
                                       Error{ErrorCode::kIo, "the keeper is busy", "", 16}});
        });
        return;
    }
    if (drop.device == node::kImageTier)
        images_.erase(drop.set);
    else
        memory_.drop({drop.device, drop.set});
    stage_.after(milliseconds(4), [this, drop, &records] {
        if (ear_.state() == nullptr)
            return;
        records.forget_weights(drop.set, drop.device);
        ear_.post(node::WeightsDropped{drop.set, drop.device});
    });
}

// Loaders live by their connection.
void Loaders::berthd_ended() {
    for (const auto& [id, loader] : loaders_) {
        stage_.account.set(loader.device, owner_of(loader), 0);
        stage_.account.set(loader.target, "weights " + owner_of(loader), 0);
    }
    loaders_.clear();
}

void Loaders::checkpoint_changes(const std::string& path) {
    const node::WeightSetId old = set_of(path);
    uint64_t& version = versions_.try_emplace(path, 1).first->second;
    ++version;
    // It is noticed by the next who looks; here that is at once.
    std::vector<WeightMemory::Place> places;
    for (const auto& [place, set] : kept())
        if ((place.second == old || place.second.value.starts_with(old.value + ".r")) &&
            !node::is_tier(place.first))
            places.push_back(place);
    for (const auto& [device, set] : places)
        ear_.post(node::WeightsStale{set, device, path, "size"});
}

} // namespace berth::simulate
