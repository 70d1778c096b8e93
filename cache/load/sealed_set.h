// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/load.h"
#include "cache/memory/device.h"
#include "cache/weights/manifest.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Weight sets that exist already, on their way between tiers: what a process is handed of one, and
// whom it may be given to.
namespace berth {

// A set that somebody else keeps alive.
struct SetView {
    const UniqueFd& manifest;
    std::span<const Segment> segments; // as the manifest counts them
    std::vector<uint64_t> segment_bytes() const;
};
inline SetView view_of(const LoadedSet& set) {
    return {set.manifest, set.segments};
}

struct SealedSet {
    UniqueFd manifest;
    std::vector<Segment> segments;
    SetView view() const { return {manifest, segments}; }
};

// `fds`: the manifest, then every segment. Sizes are the manifest's; a segment that is smaller is
// refused when it is mapped.
Result<SealedSet> sealed_set_from(std::vector<UniqueFd> fds);
// The sizes that a manifest states, before anything else of it is believed.
Result<std::vector<uint64_t>> stated_segment_bytes(const UniqueFd& manifest);

Result<std::vector<Mapping>> map_segments(const SetView& set, Device& device);

// What a set was made for, by its fingerprint's document; empty where it does not say.
struct SetEnvironment {
    std::string layout;
    std::string device_kind;
    std::string compute_capability;
};
Result<SetEnvironment> set_environment(std::string_view fingerprint_json);
// Mismatch, with the reason EnvironmentMismatch, on another kind of device or another compute
// capability than the set was made for. `origin` is where the set comes from.
Status check_device(const SetEnvironment& made_for, const Device& device, std::string_view origin);

} // namespace berth
