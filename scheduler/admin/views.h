// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "scheduler/act/node_context.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// The node's state as the JSON of the REST interface: camelCase fields, bytes and milliseconds as
// numbers, moments as RFC 3339 text. Reads only; on the decision thread.
namespace berth {
class Crew;
}

namespace berth::views {

// Bytes in use on each device by the driver's (host: the kernel's) word.
using DriverBytes = std::map<std::string, uint64_t>;

std::string timestamp(int64_t wall_ms); // "2024-05-01T12:00:00.123Z"

json::object device(const NodeContext& context, const node::Device& device,
                    const DriverBytes& driver);
// The store's state: what it holds, and in trouble why and since when.
json::object database(const Store& store, const DecisionLoop& loop);
json::array tiers(const NodeContext& context); // below the devices

// A line of the list of weights: a set, or a load on its way.
struct WeightsLine {
    std::optional<std::pair<node::DeviceId, node::WeightSetId>> set;
    node::LoadId load{};
};
std::vector<WeightsLine> weights_lines(const node::NodeState& state);
std::string id_of(const WeightsLine& line);
// Nothing: it is gone.
std::optional<json::object> weights_line(const NodeContext& context, const WeightsLine& line);
json::object instance(const node::Instance& instance, node::TimePoint now);
// startedBy: "forked", or "exec" and execBecause; both empty where another berthd started it.
void add_start(json::object& shown, const NodeContext& context, const node::Instance& instance);
// Of the instance or, of one that stands by, of whom it stands by for.
void add_rollout(json::object& shown, const node::NodeState& state, const node::Instance& instance);
json::object rollout(const node::Rollout& rollout, node::TimePoint now);
void add_ranks(json::object& shown, const NodeContext& context, const node::Instance& instance,
               const Crew* crew);
json::object operation(const OperationEntry& entry);
json::object event(const EventRecord& record);

// Of this process: resident bytes.
uint64_t resident_bytes();

} // namespace berth::views
