// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/guests.h"

#include "scheduler/node/durable.h"
#include "scheduler/simulate/loaders.h"

#include <algorithm>
#include <vector>

namespace berth::simulate {

using std::chrono::milliseconds;

namespace {

// What one maps that berthd has no set for any more is held under a number of its own.
constexpr uint64_t kHeldFrom = 1ULL << 40;
constexpr uint64_t kGuestsMax = 100; // who take leases

std::string name_of(uint64_t guest) {
    return "publication " + std::to_string(guest);
}

} // namespace

void join(Engines& engines, const Loaders& loaders, Guests& guests) {
    engines.on_back = [&guests](uint64_t holder, const node::InstanceName& instance) {
        guests.announce(holder, instance);
    };
    engines.on_end = [&guests](uint64_t holder) { guests.holder_ended(holder); };
    engines.set_of = [&loaders](const node::LoadKey& key) { return loaders.set_of(key); };
}

void Guests::takes(uint64_t guest, const node::WeightSetId& set, const node::DeviceId& device) {
    if (!listens() || memory_.holder(guest) != nullptr)
        return;
    const node::WeightSet* found = node::find_set(*ear_.state(), set, device);
    const uint64_t memory = memory_.memory_of(set, device);
    if (found == nullptr || found->dropping || memory == 0)
        return; // the actor looks before it hands one out
    memory_.map(guest, memory, "guest " + std::to_string(guest), true);
    ear_.post(node::LeaseOpened{lease_of(guest, false), set, device, "guest", {}});
}

void Guests::leaves(uint64_t guest) {
    if (memory_.holder(guest) == nullptr)
        return;
    memory_.unmap(guest);
    holder_ended(guest);
    for (const bool lost : {false, true})
        ear_.post(node::LeaseClosed{lease_of(guest, lost)});
}

void Guests::holder_ended(uint64_t holder) {
    if (fillings_.contains(kHeldFrom + holder))
        end(kHeldFrom + holder, "it has ended");
}

void Guests::all_leave() {
    for (uint64_t guest = 0; guest < kGuestsMax; ++guest)
        leaves(guest);
}

// Which of two memories of one set it has mapped it does not know: both stay.
void Guests::announce(uint64_t number, const node::InstanceName& instance) {
    const WeightMemory::Holder* holder = memory_.holder(number);
    const WeightMemory::Memory* memory = holder == nullptr ? nullptr : memory_.find(holder->memory);
    if (memory == nullptr || !listens())
        return;
    const auto [device, set] = memory->place;
    const uint64_t bytes = memory->bytes;
    std::vector<node::WeightSetId> leased;
    bool drops = false; // it may have what is being dropped
    for (const node::WeightSetId& one : {set, node::lost_id(set)})
        if (const node::WeightSet* found = node::find_set(*ear_.state(), one, device)) {
            drops = drops || found->dropping;
            if (!found->dropping)
                leased.push_back(one);
        }
    if (!leased.empty() && !drops) {
        memory_.set_known(number, true);
        holder_ended(number); // what an earlier berthd counted instead
        for (const node::WeightSetId& one : leased)
            ear_.post(node::LeaseOpened{lease_of(number, node::is_lost(one)), one, device,
                                        "holder " + std::to_string(number), instance});
        return;
    }
    if (fillings_.contains(kHeldFrom + number))
        return; // comes back by itself
    Filling& filling = fillings_[kHeldFrom + number];
    filling.set = set;
    filling.device = device;
    filling.bytes = bytes;
    filling.is_private = filling.held = true;
    ask(kHeldFrom + number);
}

void Guests::publishes(uint64_t guest, const node::DeviceId& device, uint64_t bytes,
                       bool is_private) {
    if (!listens() || fillings_.contains(guest))
        return;
    Filling& filling = fillings_[guest];
    filling.set = node::WeightSetId("published" + std::to_string(guest % 3));
    filling.device = device;
    filling.bytes = bytes;
    filling.is_private = is_private;
    ask(guest);
}

void Guests::ask(uint64_t guest) {
    Filling& filling = fillings_.at(guest);
    filling.publication = ++publications_;
    ++filling.epoch;
    ear_.post(node::PublishRequested{filling.publication,
                                     filling.set,
                                     filling.device,
                                     {},
                                     "guest " + std::to_string(guest),
                                     {},
                                     filling.bytes,
                                     0,
                                     filling.held,
                                     filling.is_private});
}

void Guests::answered(const node::PublicationAnswered& answer) {
    const auto at = std::ranges::find_if(fillings_, [&answer](const auto& one) {
        return one.second.publication == answer.publication;
    });
    if (at == fillings_.end())
        return;
    Filling& filling = at->second;
    filling.load = answer.load;
    filling.publication = 0;
    filling.counted_only = answer.load && answer.error;
    if (filling.gone || !answer.load)
        return end(at->first, "it did not wait");
}

Guests::Fillings::iterator Guests::find(node::LoadId load) {
    return std::ranges::find_if(fillings_,
                                [load](const auto& one) { return one.second.load == load; });
}

void Guests::later(uint64_t guest, Nanoseconds delay, std::function<void(Filling&)> deed) {
    stage_.after(delay, [this, guest, epoch = fillings_.at(guest).epoch, deed = std::move(deed)] {
        const auto found = fillings_.find(guest);
        if (found != fillings_.end() && found->second.epoch == epoch)
            deed(found->second);
    });
}

// Of what it holds from before, berthd counts what is left on the device.
void Guests::take_bytes(uint64_t guest, const Filling& filling) {
    uint64_t bytes = filling.bytes;
    if (const node::NodeState* state = ear_.state(); state != nullptr && filling.load)
        if (const auto load = state->loads.find(*filling.load); load != state->loads.end())
            bytes = std::min(bytes, load->second.weight_bytes);
    stage_.account.set(filling.device, "weights of guest " + std::to_string(guest), bytes);
    stage_.check_account();
}

void Guests::go(node::LoadId id) {
    const auto at = find(id);
    if (at == fillings_.end())
        return;
    const uint64_t guest = at->first;
    Filling& filling = at->second;
    const bool again = std::exchange(filling.held, true);
    take_bytes(guest, filling);
    if (guest >= kHeldFrom) { // as long as it is mapped; by a guest some minutes
        const uint64_t holder = guest - kHeldFrom;
        if (holder < kGuestsMax)
            later(guest, stage_.dice.of(name_of(guest)).ms(1000, 600'000),
                  [this, holder](Filling&) { leaves(holder); });
        return;
    }
    Dice dice = stage_.dice.of(name_of(guest)).of("go", filling.epoch);
    if (filling.is_private || filling.counted_only)
        return later(guest, dice.ms(500, 20'000),
                     [this, guest](Filling&) { end(guest, "it had enough"); });
    if (!again && stage_.fault(name_of(guest) + " dies on the way", 40))
        return later(guest, dice.ms(10, 500),
                     [this, guest](Filling&) { end(guest, "killed by SIGKILL"); });
    const bool lies = stage_.fault(name_of(guest) + " seals more than it had declared", 15);
    later(guest, dice.ms(1000, 6000), [this, lies](Filling& f) {
        f.sealed = true;
        ear_.post(
            node::LoadSealed{*f.load, "fp-" + f.set.value, f.set, lies ? f.bytes * 2 : f.bytes});
    });
}

void Guests::keep(const node::KeepWeights& keep) {
    const auto at = find(keep.load);
    if (at == fillings_.end())
        return;
    const Filling filling = at->second;
    const uint64_t guest = at->first;
    stage_.account.set(filling.device, "weights of guest " + std::to_string(guest), 0);
    WeightMemory::Kept set;
    set.bytes = filling.bytes;
    set.fingerprint = keep.set.fingerprint;
    set.pinned = keep.set.pinned;
    set.published = true;
    memory_.keep({keep.set.device, keep.set.id}, std::move(set));
    fillings_.erase(at);
    stage_.after(milliseconds(5), [this, load = keep.load] {
        ear_.post(node::LoaderExited{load, "it holds nothing any more"});
    });
}

void Guests::refuse(node::LoadId id) {
    if (const auto at = find(id); at != fillings_.end())
        later(at->first, milliseconds(2),
              [this, guest = at->first](Filling&) { end(guest, "refused"); });
}

void Guests::kill(node::LoadId id) {
    refuse(id);
}

// Its bytes are free before anybody hears of it.
void Guests::end(uint64_t guest, const std::string& how) {
    const auto at = fillings_.find(guest);
    const Filling filling = at->second;
    stage_.account.set(filling.device, "weights of guest " + std::to_string(guest), 0);
    if (!filling.load && filling.publication > 0 && !filling.gone && listens()) {
        at->second.gone = true; // berthd has not answered yet
        return;
    }
    fillings_.erase(at);
    if (!filling.load)
        return;
    if (filling.is_private || filling.counted_only)
        return ear_.post(node::PrivateLoadEnded{*filling.load});
    ear_.post(node::LoadFailed{*filling.load, Error{ErrorCode::kUnavailable,
                                                    "the publisher: " + how, "PublisherDied", 0}});
    ear_.post(node::LoaderExited{*filling.load, how});
}

// What holds no bytes gives up; the rest comes back, and counts once berthd has heard of it.
void Guests::berthd_ended() {
    for (uint64_t guest = 0; guest < kGuestsMax; ++guest)
        if (memory_.holder(guest) != nullptr) {
            memory_.set_known(guest, false);
            come_back(guest);
        }
    std::vector<uint64_t> left;
    std::erase_if(fillings_, [](const auto& one) { return !one.second.held || one.second.gone; });
    for (auto& [guest, filling] : fillings_) {
        stage_.account.set(filling.device, "weights of guest " + std::to_string(guest), 0);
        filling.load.reset();
        filling.publication = 0;
        filling.sealed = filling.counted_only = false;
        ++filling.epoch;
        left.push_back(guest);
    }
    for (const uint64_t guest : left)
        come_back(guest);
}

void Guests::come_back(uint64_t guest) {
    Dice dice = stage_.dice.of("guest comes back", guest)
                    .of("", static_cast<uint64_t>(stage_.now.time_since_epoch().count()));
    stage_.after(dice.ms(20, 400), [this, guest] {
        const bool fills = fillings_.contains(guest);
        if (!fills && memory_.holder(guest) == nullptr)
            return;
        if (!listens())
            return come_back(guest);
        if (!fills)
            return announce(guest, {});
        if (const Filling& filling = fillings_.at(guest); !filling.load && filling.publication == 0)
            ask(guest);
    });
}

} // namespace berth::simulate
