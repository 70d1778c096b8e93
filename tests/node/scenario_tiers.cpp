// SPDX-License-Identifier: Apache-2.0
// What scenarios say of the tiers below the devices.
#include "scheduler/node/tiers.h"
#include "tests/node/scenario_runner.h"
#include "tests/node/scenario_words.h"

namespace berth::node::test {

std::string Runner::given_copy(const Words& words) {
    WeightsAdopted adopted;
    adopted.id = WeightSetId(words[1]);
    adopted.path = words[2];
    adopted.device = DeviceId(words[3]);
    adopted.bytes = size_of(words[4]);
    adopted.made_on = DeviceId(word_after(words, "of", ""));
    if (adopted.device == kImageTier)
        adopted.file = "/images/" + words[1] + ".berth-image";
    return event(adopted);
}

std::string Runner::when_copy(const Words& words) {
    const auto found = state_.loads.find(copy_.load);
    const uint64_t bytes = words.size() > 2 && words[1] != "failed" ? size_of(words[2])
                           : found != state_.loads.end()            ? found->second.weight_bytes
                                                                    : 0;
    if (words[1] == "planned")
        return event(LoadPlanned{copy_.load, "f", copy_.set, bytes, 0});
    if (words[1] == "sealed")
        return event(LoadSealed{copy_.load, "f", copy_.set, bytes});
    if (words[1] == "written")
        return event(ImageWritten{copy_.load, bytes});
    if (words[1] == "failed")
        return event(LoadFailed{copy_.load, Error{ErrorCode::kIo, "broken", words[2], 0}});
    if (words[1] == "full")
        return event(
            LoadFailed{copy_.load, Error{ErrorCode::kResourceExhausted, "full", "DiskFull", 0}});
    if (words[1] == "exited")
        return event(LoaderExited{copy_.load, "exit code 0"});
    return "unknown line";
}

std::string Runner::when_changed(const Words& words) {
    const WeightSetId id(words[0]);
    for (const auto& [device, info] : state_.devices)
        if (find_set(state_, id, device) != nullptr)
            return event(WeightsStale{id, device, words[3], "size  1  2"});
    return "it is on no device";
}

std::string Runner::then_tier(const Words& words) const {
    const TierUsage now = tier_usage(state_, DeviceId(words[1]));
    const uint64_t making = size_of(word_after(words, "and", "0"));
    return now.used_bytes == size_of(words[3]) && now.making_bytes == making
               ? ""
               : "it has " + format_bytes_exact(now.used_bytes) + " and " +
                     format_bytes_exact(now.making_bytes) + " coming";
}

std::string Runner::then_set(const Words& words) const {
    const WeightSetId id(words[0]);
    std::string places;
    for (const DeviceId& place : places_of(state_, id))
        places += (places.empty() ? "" : " ") + place.value;
    if (words[1] == "came") {
        for (const auto& [key, set] : state_.weights)
            if (set.id == id && !is_tier(set.device))
                return set.source == words[3] ? "" : "it came from " + set.source;
        return "it is on no device";
    }
    std::string wanted;
    for (size_t i = 3; i < words.size(); ++i)
        wanted += (i == 3 ? "" : " ") + words[i];
    if (wanted == "nothing")
        wanted.clear();
    return places == wanted ? "" : "it lies in " + (places.empty() ? "nothing" : places);
}

} // namespace berth::node::test
