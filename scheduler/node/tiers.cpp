// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/tiers.h"

#include "scheduler/node/step.h"

#include <algorithm>

// What a load comes up from, and what is no longer what the disk has.
namespace berth::node {

namespace {

// Whether what was made for one device serves the other.
bool alike(const NodeState& state, const DeviceId& one, const DeviceId& other) {
    if (one == other)
        return true;
    const auto a = state.devices.find(one), b = state.devices.find(other);
    if (a == state.devices.end() || b == state.devices.end() || a->second.kind != b->second.kind)
        return false;
    return a->second.kind == DeviceKind::kHost || a->second.name == b->second.name;
}

} // namespace

bool belongs(const NodeState& state, const WeightSet& copy, const DeviceId& tier) {
    if (copy.device != tier)
        return false;
    const std::string& folder = state.policy.memory.image_dir;
    return tier != kImageTier || (!folder.empty() && copy.file.starts_with(folder + "/"));
}

uint64_t tier_limit(const NodeState& state, const DeviceId& tier) {
    const policies::MemorySpec& memory = state.policy.memory;
    if (tier == kHostTier)
        return memory.host_tier_bytes;
    return memory.image_dir.empty() ? 0 : memory.image_limit_bytes;
}

TierUsage tier_usage(const NodeState& state, const DeviceId& tier) {
    TierUsage out;
    out.limit_bytes = tier_limit(state, tier);
    for (const auto& [key, copy] : state.weights) {
        if (!belongs(state, copy, tier))
            continue;
        ++out.copies;
        out.used_bytes += copy.bytes;
        out.leaving_bytes += copy.dropping && copy.drop_error.empty() ? copy.bytes : 0;
    }
    for (const auto& [id, load] : state.loads)
        if (load.copy_to == tier && !load.sealed)
            out.making_bytes += load.weight_bytes;
    return out;
}

const WeightSet* find_copy(const NodeState& state, const DeviceId& tier, const LoadKey& key) {
    if (tier_limit(state, tier) == 0)
        return nullptr;
    LoadKey here = key;
    here.device = tier;
    for (const auto& [id, copy] : state.weights)
        if (belongs(state, copy, tier) && !copy.dropping && copy.keys.contains(here) &&
            alike(state, copy.made_on, key.device))
            return &copy;
    return nullptr;
}

bool is_read(const NodeState& state, const WeightSet& set) {
    return std::any_of(state.loads.begin(), state.loads.end(), [&set](const auto& one) {
        return one.second.source == set.device && one.second.from == set.id;
    });
}

std::vector<DeviceId> places_of(const NodeState& state, const WeightSetId& id) {
    std::vector<DeviceId> places;
    for (const auto& [key, set] : state.weights)
        if (set.id == id && !set.dropping && !is_tier(set.device))
            places.push_back(set.device);
    for (const DeviceId& tier : {kHostTier, kImageTier})
        if (const auto found = state.weights.find({tier, id});
            found != state.weights.end() && !found->second.dropping)
            places.push_back(tier);
    return places;
}

std::string image_file(const NodeState& state, const WeightSetId& set) {
    return state.policy.memory.image_dir + "/" + set.value + std::string(kImageSuffix);
}

std::optional<WeightSetId> set_of_image(std::string_view name) {
    if (!name.ends_with(kImageSuffix))
        return std::nullopt;
    name.remove_suffix(kImageSuffix.size());
    if (name.size() != kSetIdDigits ||
        name.find_first_not_of("0123456789abcdef") != std::string_view::npos)
        return std::nullopt;
    return WeightSetId(std::string(name));
}

std::set<std::string> image_files(const NodeState& state, LoadId but) {
    std::set<std::string> files;
    for (const auto& [key, copy] : state.weights)
        if (copy.device == kImageTier)
            files.insert(copy.file);
    for (const auto& [id, load] : state.loads)
        if (load.copy_to == kImageTier && id != but)
            files.insert(load.file);
    return files;
}

// From the topmost tier that has it and has not failed this load already.
void Step::choose_source(Load& load) {
    if (is_published(load.key))
        return;
    for (const DeviceId& tier : {kHostTier, kImageTier}) {
        const WeightSet* copy =
            load.failed_tiers.contains(tier) ? nullptr : find_copy(s_, tier, load.key);
        if (copy == nullptr)
            continue;
        load.source = tier;
        load.from = copy->id;
        load.file = copy->file;
        s_.weights.at({tier, copy->id}).last_used = now_;
        return;
    }
}

// A tier's failure costs time, no load: the next one below is tried.
void Step::fall_through(Load& load, const Error& error) {
    const auto copy = s_.weights.find({load.source, load.from});
    // A checkpoint that cannot be looked at now says nothing about the copy.
    const bool useless = error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kMismatch ||
                         error.reason == "NoImage";
    Load next;
    next.failed_tiers = load.failed_tiers;
    next.failed_tiers.insert(load.source);
    next.key = load.key;
    next.model = load.model;
    next.priority = load.priority;
    next.operations = std::move(load.operations);
    load.operations.clear();
    act(EmitEvent{true, "weights/" + load.from.value, "TierFailed",
                  "it did not come up from " + load.source.value + " (" + error.message +
                      "); the next tier below is tried" +
                      (useless ? ", and this copy is dropped" : "")});
    if (useless && copy != s_.weights.end() && !copy->second.dropping)
        drop(copy->second);
    begin_load(std::move(next));
}

// What the disk says is no longer what was loaded.
void Step::on(const WeightsStale& event) {
    const auto found = s_.weights.find({event.device, event.set});
    if (found == s_.weights.end() || found->second.dropping || is_tier(event.device))
        return;
    auto of_path = [&event](const LoadKey& key) { return key.path == event.path; };
    WeightSet& stale = found->second;
    if (std::none_of(stale.keys.begin(), stale.keys.end(), of_path))
        return;
    if (stale.pinned) // the next one is what the pin is about
        for (const LoadKey& key : stale.keys)
            if (of_path(key))
                s_.pinned_keys.insert(key);
    std::erase_if(stale.keys, of_path);
    stale.stale = stale.keys.empty();
    stale.pinned = stale.pinned && !stale.stale;
    act(PersistWeights{stale});
    act(EmitEvent{true, "weights/" + event.set.value, "CheckpointChanged",
                  event.path + " is not what this set was loaded from: it is loaded anew as " +
                      "another set, and this one is dropped once nobody uses it; what differs:\n" +
                      event.differences});
    for (const DeviceId& tier : {kHostTier, kImageTier}) {
        const auto copy = s_.weights.find({tier, event.set});
        if (copy == s_.weights.end() || copy->second.dropping)
            continue;
        std::erase_if(copy->second.keys, of_path);
        if (copy->second.keys.empty())
            drop(copy->second);
    }
}

} // namespace berth::node
