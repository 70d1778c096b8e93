// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/state.h"

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// What lies below the devices: copies of weight sets in host memory and as files. A copy is a
// WeightSet under the tier's name in a device's place, with keys that name the tier. Copies are
// written once a set is resident, so that a set that leaves its device is only dropped there.
namespace berth::node {

inline const DeviceId kHostTier{"host-tier"};
inline const DeviceId kImageTier{"image"};

inline bool is_tier(const DeviceId& device) {
    return device == kHostTier || device == kImageTier;
}
// How many bytes the policy lets it hold; 0: there is no such tier.
uint64_t tier_limit(const NodeState& state, const DeviceId& tier);

struct TierUsage {
    uint64_t limit_bytes = 0;
    uint64_t used_bytes = 0;    // of copies, those that are being dropped included
    uint64_t making_bytes = 0;  // of copies under way
    uint64_t leaving_bytes = 0; // part of used_bytes: being dropped, unless that has failed
    uint64_t copies = 0;
};
TierUsage tier_usage(const NodeState& state, const DeviceId& tier);

// Whether a copy counts in that tier. Files in a folder that the policy no longer names are left
// alone.
bool belongs(const NodeState& state, const WeightSet& copy, const DeviceId& tier);
// The copy from which that load may come.
const WeightSet* find_copy(const NodeState& state, const DeviceId& tier, const LoadKey& key);
// Whether a load or a copy run has it open.
bool is_read(const NodeState& state, const WeightSet& set);
// Where a set lies, from the top: devices, then tiers; not where it is being dropped.
std::vector<DeviceId> places_of(const NodeState& state, const WeightSetId& set);
// The file of a set's image under this policy: DIR/ID.berth-image.
std::string image_file(const NodeState& state, const WeightSetId& set);
inline constexpr std::string_view kImageSuffix = ".berth-image";
inline constexpr size_t kSetIdDigits = 16;
// The set whose image has that name; nullopt when it is no image's name.
std::optional<WeightSetId> set_of_image(std::string_view name);
// The files of all images, and of those that are being written but for that one.
std::set<std::string> image_files(const NodeState& state, LoadId but = {});

} // namespace berth::node
