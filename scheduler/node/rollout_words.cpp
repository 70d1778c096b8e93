// SPDX-License-Identifier: Apache-2.0
#include "scheduler/node/ranks.h"
#include "scheduler/node/rollout_step.h"

#include <algorithm>
#include <optional>
#include <vector>

// What a rollout in place would cost, before it begins.
namespace berth::node {

namespace {

using policies::InstanceSpec;

// Of the same weights, wherever they have been.
std::optional<uint64_t> known_bytes(const NodeState& state, LoadKey key) {
    for (const auto& [known, bytes] : state.known_weight_bytes) {
        key.device = known.device;
        if (known == key)
            return bytes;
    }
    return std::nullopt;
}

// What must be loaded before it could serve with that document; empty: nothing.
std::string load_words(const NodeState& state, const Instance& i, const InstanceSpec& after) {
    const policies::ModelSpec* model = state.documents.find_model(after.model);
    if (model == nullptr)
        return "";
    Instance next = i;
    next.spec = after;
    next.process_alive = false;
    const std::vector<LoadKey> missing = missing_parts(state, next, *model);
    if (missing.empty())
        return "";
    uint64_t bytes = 0, largest = 0;
    for (const LoadKey& key : missing) {
        const std::optional<uint64_t> known = known_bytes(state, key);
        if (!known)
            return "; to that comes loading " + model->path +
                   ", of which this berthd does not know how large it is";
        bytes += *known;
        largest = std::max(largest, *known);
    }
    const uint64_t rate = state.load_bytes_per_second;
    const auto took = [&] { // parts are loaded side by side
        const std::chrono::duration<double> seconds(static_cast<double>(largest) /
                                                    static_cast<double>(rate));
        return format_duration(std::chrono::duration_cast<Nanoseconds>(seconds));
    };
    return "; to that comes loading " + format_bytes(bytes) + " from " + model->path +
           (rate > 0 ? ", about " + took() + " as fast as the last load from a checkpoint was"
                     : ", and this berthd has not seen how fast loads are");
}

} // namespace

// Steady time, but for people.
std::string gap_words(const NodeState& state, const Instance& i, const InstanceSpec& after) {
    std::string text = i.start_took > Nanoseconds(0)
                           ? "nobody would serve for about " + format_duration(i.start_took) +
                                 ", which is what its last start took"
                           : "how long nobody would serve is not known, as this berthd has not "
                             "seen it start";
    text += load_words(state, i, after);
    const auto last = state.rollouts.find(i.name);
    if (last != state.rollouts.end() && last->second.gap > Nanoseconds(0))
        text += "; at rollout " + std::to_string(last->second.number) + " nobody did for " +
                format_duration(last->second.gap);
    return text;
}

} // namespace berth::node
