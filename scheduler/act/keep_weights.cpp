// SPDX-License-Identifier: Apache-2.0
// The actor's part that deals with descriptors: into the catalogue and the keeper, and out again.
#include "scheduler/act/node_actor.h"

#include "base/log.h"
#include "cache/weights/manifest.h"
#include "scheduler/act/deep_hash.h"
#include "scheduler/act/record_mapping.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

std::string gate_key(const node::DeviceId& device) {
    return "gate/" + device.value;
}

} // namespace

void NodeActor::keep_weights(const node::KeepWeights& keep) {
    auto sealed = loaders_.take_sealed(keep.load);
    if (!sealed)
        sealed = publish_.take_sealed(keep.load);
    if (!sealed) {
        log::error("load={} has nothing to keep: its descriptors are gone, ignoring",
                   static_cast<uint64_t>(keep.load));
        return;
    }
    ResidentSet set;
    set.id = keep.set.id.value;
    set.fingerprint = sealed->fingerprint;
    set.fingerprint_json = sealed->fingerprint_json;
    set.model = keep.set.models.empty() ? "" : keep.set.models.begin()->value;
    set.path = keep.set.keys.empty() ? "" : keep.set.keys.begin()->path;
    if (!keep.set.keys.empty() && node::is_published(*keep.set.keys.begin())) {
        set.model = sealed->model;
        set.path = sealed->path;
    }
    set.device = keep.set.device.value;
    set.manifest = std::move(sealed->manifest);
    for (size_t i = 0; i < sealed->segments.size(); ++i)
        set.segments.push_back({std::move(sealed->segments[i]), sealed->segment_bytes[i]});
    set.pinned = keep.set.pinned;
    set.loaded_at_ms = wall_clock_ms();
    set.bytes_read = sealed->bytes_read;
    set.phases = sealed->phases;
    auto manifest = Manifest::open(set.manifest, sealed->segment_bytes);
    if (manifest) {
        set.tensors = manifest->size();
        remember_hash(set.id, *manifest);
    }
    if (!node::is_tier(keep.set.device))
        ++context_.metrics.weight_loads[keep.set.source];
    std::string id = set.id;
    std::string device = set.device;
    Catalogue& catalogue = context_.catalogue_of(device);
    if (auto added = catalogue.add(std::move(set)); !added)
        log::info("weights id={} device={}: {}, keeping the one that is there", id, device,
                  added.error().message);
    const ResidentSet* kept = catalogue.find(id, device);
    ++keeping_;
    put_set(*kept, [this, load = keep.load, id](Status put) {
        // The memory is safe with this process either way; what is at stake is its next restart.
        if (!put)
            context_.note(
                true, "weights/" + id, "NotKept",
                fmt::format("the keeper did not take the descriptors ({}): until it does, "
                            "the death of berthd would lose this set",
                            put.error().message));
        if (--keeping_ == 0)
            for (const node::Operation& loaded : std::exchange(loaded_, {}))
                operation_done(loaded);
        loaders_.kept(load);
        publish_.kept(load);
    });
}

// The same inputs gave other bytes: somebody must look at that before it is served as the same.
void NodeActor::remember_hash(const std::string& id, const Manifest& manifest) {
    std::string hash = deep_hash(manifest);
    std::string& known = context_.deep_hashes[id];
    if (!known.empty() && known != hash)
        context_.note(true, "weights/" + id, "DeepHashChanged",
                      fmt::format("its bytes hash to {}, before they did to {}: one of the two "
                                  "loads went wrong, or its files changed unseen",
                                  hash, known));
    if (known == hash)
        return;
    known = hash;
    loop_.record(MetaRecord{std::string(kDeepHashKey) + id, hash});
}

void NodeActor::put_set(const ResidentSet& set, KeeperLink::Then then) {
    std::vector<UniqueFd> copies;
    for (int fd : set.descriptors()) {
        auto copy = duplicate_of(fd);
        if (!copy) {
            then(fail(copy.error()));
            return;
        }
        copies.push_back(std::move(*copy));
    }
    keeper_.put(set.key(), keeper_meta_of(set), std::move(copies), std::move(then));
}

void NodeActor::put_gate(const node::DeviceId& device) {
    const GateFds* gate = context_.gates.find(device);
    if (gate == nullptr)
        return;
    auto copy = gate->writable.duplicate();
    if (!copy) {
        log::error("gate page of {}: {}, going on without the keeper's copy", device.value,
                   copy.error().message);
        return;
    }
    std::vector<UniqueFd> copies;
    copies.push_back(std::move(*copy));
    keeper_.put(gate_key(device), "{}", std::move(copies), [device](Status put) {
        if (!put)
            log::error("gate page of {}: {}", device.value, put.error().message);
    });
}

void NodeActor::keep_service(std::string key, std::string meta, std::vector<UniqueFd> fds) {
    const auto then = [key](const Status& done) {
        if (!done)
            log::error("the keeper and '{}': {}", key, done.error().message);
    };
    if (fds.empty())
        keeper_.drop(key, then);
    else
        keeper_.put(key, std::move(meta), std::move(fds), then);
}

void NodeActor::note_requests(const node::NoteRequests& note) {
    for (const auto& [name, one] : context_.state().instances)
        if (one.service == note.instance.value)
            return services_.note_requests(one.spec);
}

void NodeActor::forget_requests(const node::ForgetRequests& forget) {
    const auto found = context_.state().instances.find(forget.instance);
    if (found == context_.state().instances.end())
        return;
    if (forget.drop)
        services_.drop_journal(found->second.spec);
    else if (forget.noted)
        services_.forget_noted(found->second.spec);
    else
        services_.forget_requests(found->second.spec);
}

// A process of its service: it has the socket, whoever else has lost it.
bool NodeActor::lives_there(const std::string& instance) const {
    return std::ranges::any_of(context_.state().instances, [&instance](const auto& one) {
        return one.second.process_alive &&
               (one.second.service == instance || one.first.value == instance);
    });
}

void NodeActor::follow_services() {
    services_.follow(context_.state().documents,
                     [this](const std::string& instance, const Error& error) {
                         if (error.reason == "AddressInUse" && lives_there(instance))
                             return log::info("service instance={}: {}; its engine is to give "
                                              "the socket back",
                                              instance, error.message);
                         context_.note(true, "instance/" + instance, "ListenFailed",
                                       error.message + "; it is tried again when it is started");
                     });
}

void NodeActor::refill() {
    for (const auto& [device, gate] : context_.gates.all())
        put_gate(device);
    services_.refill();
    auto refused = std::make_shared<size_t>(0);
    auto left =
        std::make_shared<size_t>(context_.catalogue.all().size() + context_.host_tier.all().size());
    auto one_is_there = [this, refused, left](const std::string& id, const Status& put) {
        if (!put) {
            ++*refused;
            log::error("weights id={}: the new keeper did not take them: {}", id,
                       put.error().message);
        }
        if (--*left == 0 && *refused == 0)
            record_keeper();
    };
    if (*left == 0)
        record_keeper();
    for (const Catalogue* catalogue : {&context_.catalogue, &context_.host_tier})
        for (const ResidentSet* set : catalogue->all())
            put_set(*set,
                    [id = set->id, one_is_there](const Status& put) { one_is_there(id, put); });
    context_.note(
        true, "node/" + context_.node_name, "KeeperReplaced",
        fmt::format("berth-keeper had ended; pid {} holds everything again", keeper_.pid()));
}

void NodeActor::persist_pin(const node::WeightSet& set) {
    ResidentSet* kept = context_.catalogue.find(set.id.value, set.device.value);
    if (kept == nullptr || kept->pinned == set.pinned)
        return;
    kept->pinned = set.pinned;
    put_set(*kept, [](Status) {});
}

void NodeActor::drop_weights(const node::DropWeights& drop) {
    auto ended = [this, drop](const Status& dropped) {
        if (!dropped) {
            context_.post(node::DropFailed{drop.set, drop.device, dropped.error()});
            return;
        }
        loop_.record(ForgetPlacement{drop.set.value, drop.device.value});
        context_.post(node::WeightsDropped{drop.set, drop.device});
    };
    if (drop.device == node::kImageTier) {
        tiers_.remove_image(drop, ended);
        return;
    }
    // When it is tried again our own descriptors are closed already.
    auto removed =
        context_.catalogue_of(drop.device.value).remove(drop.set.value, drop.device.value);
    if (removed)
        attach_.dropped(drop.set, drop.device);
    removed = fail(ErrorCode::kNotFound, "dropped"); // closes our descriptors
    ResidentSet named;
    named.id = drop.set.value;
    named.device = drop.device.value;
    keeper_.drop(named.key(), ended);
}

} // namespace berth
