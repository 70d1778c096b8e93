// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/record_mapping.h"

#include "base/json.h"
#include "scheduler/act/wall_time.h"
#include "scheduler/node/durable.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

constexpr uint64_t kRanksMax = 64; // as policies have it

json::object phases_json(const node::Phases& phases) {
    json::object written;
    for (const auto& [name, ms] : phases)
        written[name] = ms;
    return written;
}

node::Phases phases_from(const json::value& value) {
    node::Phases phases;
    if (!value.is_object())
        return phases;
    for (const auto& [name, ms] : value.get_object())
        if (ms.is_number())
            phases[std::string(name)] = ms.to_number<double>();
    return phases;
}

Result<json::value> parse_or_empty(const std::string& text, std::string_view what) {
    if (text.empty())
        return json::value(json::object());
    return json::parse(text, what);
}

json::array all_wall_ms(const std::vector<node::TimePoint>& times) {
    json::array written;
    for (node::TimePoint at : times)
        written.emplace_back(wall_ms(at));
    return written;
}

// Separated by commas; one may be empty.
template <typename Id>
std::vector<Id> names_from(const std::string& text) {
    std::vector<Id> names;
    for (size_t begin = 0; !text.empty() && begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        names.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return names;
}

// Rank 0 is the record's own process.
json::array ranks_json(const node::InstanceRecovered& kept,
                       const std::vector<uint32_t>& gate_slots) {
    json::array ranks;
    for (size_t n = 0; n < kept.others.size(); ++n) {
        const node::RankProcess& one = kept.others[n];
        ranks.push_back(
            json::object{{"pid", one.process.pid},
                         {"startTicks", one.process.start_ticks},
                         {"token", one.token_sha256},
                         {"gateSlot", n + 1 < gate_slots.size() ? gate_slots[n + 1] : 0}});
    }
    return ranks;
}

Status read_ranks(const json::value& list, const std::string& what, RecoveredInstance& out) {
    for (const json::value& entry : list.get_array()) {
        json::Reader reader(entry, what);
        reader.allow_unknown();
        node::RankProcess one;
        one.process.pid = static_cast<int>(reader.integer("pid", 0));
        one.process.start_ticks = reader.unsigned_integer("startTicks", 0);
        one.token_sha256 = reader.string("token", "");
        out.gate_slots.push_back(static_cast<uint32_t>(reader.unsigned_integer("gateSlot", 0)));
        BERTH_TRY(reader.finish());
        out.event.others.push_back(std::move(one));
    }
    return {};
}

json::object spec_json(const policies::InstanceSpec& spec) {
    json::array command;
    for (const std::string& word : spec.engine.command)
        command.emplace_back(word);
    return {{"model", spec.model},
            {"priorityClassName", spec.class_name},
            {"driver", policies::to_string(spec.engine.driver)},
            {"command", command}};
}

} // namespace

InstanceRecord to_record(const node::InstanceRecovered& kept, const policies::InstanceSpec& spec,
                         const std::vector<uint32_t>& gate_slots) {
    InstanceRecord row = to_record(kept, gate_slots);
    row.spec = json::serialize(spec_json(spec));
    return row;
}

InstanceRecord to_record(const node::InstanceRecovered& kept,
                         const std::vector<uint32_t>& gate_slots) {
    InstanceRecord row;
    row.name = kept.name.value;
    row.state = to_string(kept.state);
    row.desired = to_string(kept.desired);
    for (const node::DeviceId& device : kept.devices)
        row.device += (row.device.empty() ? "" : ",") + device.value;
    row.pid = kept.process.pid;
    row.start_ticks = static_cast<int64_t>(kept.process.start_ticks);
    row.token_hash = kept.token_sha256;
    row.grant_bytes = static_cast<int64_t>(kept.grant_bytes);
    for (const node::WeightSetId& set : kept.weights)
        row.weight_set += (&set == kept.weights.data() ? "" : ",") + set.value;
    row.restarts = static_cast<int64_t>(kept.restarts);
    row.reason = kept.reason;
    row.message = kept.message;
    row.endpoint = kept.endpoint;
    row.phases = json::serialize(phases_json(kept.phases));
    json::object extra{
        {"heldBy", node::to_string(kept.held_by)},
        {"processDigest", kept.process_digest},
        {"grantBytesResume", kept.grant_bytes_resume},
        {"grantBytesNext", kept.grant_bytes_next},
        {"shrunkBy", node::to_string(kept.shrunk_by)},
        {"overheadBytes", kept.overhead_bytes},
        {"hostBytes", kept.host_bytes},
        {"starts", kept.starts},
        {"gateSlot", gate_slots.empty() ? 0 : gate_slots.front()},
        {"onHold", kept.on_hold},
        {"service", kept.service},
        {"standsBy", kept.stands_by},
        {"generation", kept.generation},
        {"journals", kept.journals},
        {"requestsDigest", kept.requests_digest},
        {"startTookNs", kept.start_took.count()},
        {"disruptionsMs", all_wall_ms(kept.disruptions)},
    };
    if (kept.ranks > 1) {
        extra["rankCount"] = kept.ranks;
        extra["ranks"] = ranks_json(kept, gate_slots);
    }
    if (kept.came_from)
        extra["cameFrom"] = node::to_string(*kept.came_from);
    if (kept.waiting_since)
        extra["waitingSinceMs"] = wall_ms(*kept.waiting_since);
    row.extra = json::serialize(extra);
    return row;
}

Result<RecoveredInstance> instance_from(const InstanceRecord& record) {
    std::string what = fmt::format("the record of instance '{}'", record.name);
    BERTH_ASSIGN(json::value phases, parse_or_empty(record.phases, what));
    BERTH_ASSIGN(json::value extra, parse_or_empty(record.extra, what));
    json::Reader reader(extra, what);
    reader.allow_unknown();
    RecoveredInstance recovered;
    node::InstanceRecovered& event = recovered.event;
    BERTH_ASSIGN(event.held_by, node::held_by_from(reader.string("heldBy", "")));
    event.process_digest = reader.string("processDigest", "");
    event.grant_bytes_resume = reader.unsigned_integer("grantBytesResume", 0);
    event.grant_bytes_next = reader.unsigned_integer("grantBytesNext", 0);
    BERTH_ASSIGN(event.shrunk_by, node::held_by_from(reader.string("shrunkBy", "")));
    if (const std::string from = reader.string("cameFrom", ""); !from.empty()) {
        BERTH_ASSIGN(event.came_from, node::instance_state_from(from));
    }
    event.overhead_bytes = reader.unsigned_integer("overheadBytes", 0);
    event.host_bytes = reader.unsigned_integer("hostBytes", 0);
    event.starts = reader.unsigned_integer("starts", 0);
    recovered.gate_slots = {static_cast<uint32_t>(reader.unsigned_integer("gateSlot", 0))};
    event.ranks = static_cast<uint32_t>(
        std::clamp<uint64_t>(reader.unsigned_integer("rankCount", 1), 1, kRanksMax));
    if (const json::value* ranks = extra.get_object().if_contains("ranks");
        ranks != nullptr && ranks->is_array())
        BERTH_TRY(read_ranks(*ranks, what, recovered));
    event.on_hold = reader.boolean("onHold", false);
    event.service = reader.string("service", "");
    event.stands_by = reader.boolean("standsBy", false);
    event.generation = reader.unsigned_integer("generation", 0);
    event.journals = reader.boolean("journals", false);
    event.requests_digest = reader.string("requestsDigest", "");
    event.start_took = Nanoseconds(reader.integer("startTookNs", 0));
    if (const int64_t since = reader.integer("waitingSinceMs", 0); since > 0)
        event.waiting_since = steady_from(since);
    if (const json::value* times = extra.get_object().if_contains("disruptionsMs");
        times != nullptr && times->is_array())
        for (const json::value& at : times->get_array())
            if (at.is_int64())
                event.disruptions.push_back(steady_from(at.get_int64()));
    BERTH_TRY(reader.finish());
    BERTH_ASSIGN(event.state, node::instance_state_from(record.state));
    BERTH_ASSIGN(event.desired, node::desired_from(record.desired));
    event.name = node::InstanceName(record.name);
    event.reason = record.reason;
    event.message = record.message;
    event.devices = names_from<node::DeviceId>(record.device);
    event.weights = names_from<node::WeightSetId>(record.weight_set);
    event.process = {static_cast<int>(record.pid), static_cast<uint64_t>(record.start_ticks)};
    event.token_sha256 = record.token_hash;
    event.endpoint = record.endpoint;
    event.grant_bytes = static_cast<uint64_t>(record.grant_bytes);
    event.restarts = static_cast<uint64_t>(record.restarts);
    event.phases = phases_from(phases);
    return recovered;
}

OperationRecord to_record(const OperationEntry& entry) {
    const node::Operation& operation = entry.operation;
    OperationRecord row;
    row.id = operation.id.value;
    row.request_id = entry.request_id;
    row.kind = node::to_string(operation.kind);
    row.instance = operation.instance.value;
    row.mode = policies::to_string(operation.mode);
    row.state = node::to_string(operation.state);
    row.phases = json::serialize(phases_json(operation.phases));
    row.bytes_freed = static_cast<int64_t>(operation.bytes_freed);
    if (operation.error)
        row.error = json::serialize(json::from_error(*operation.error));
    row.started_ms = entry.started_ms;
    row.ended_ms = entry.ended_ms;
    row.extra = json::serialize(json::object{
        {"object", operation.object},
        {"reached", policies::to_string(operation.reached)},
        {"cause", operation.cause},
        {"dryRun", operation.dry_run},
        {"drop", operation.drop},
        {"message", operation.message},
        {"bytesSaved", operation.bytes_saved},
        {"bytesMoved", operation.bytes_moved},
    });
    return row;
}

Result<OperationEntry> operation_from(const OperationRecord& record) {
    std::string what = fmt::format("the record of operation '{}'", record.id);
    BERTH_ASSIGN(json::value phases, parse_or_empty(record.phases, what));
    BERTH_ASSIGN(json::value extra, parse_or_empty(record.extra, what));
    json::Reader reader(extra, what);
    reader.allow_unknown();
    OperationEntry entry;
    node::Operation& operation = entry.operation;
    operation.id = node::OperationId(record.id);
    BERTH_ASSIGN(operation.kind, node::operation_kind_from(record.kind));
    operation.instance = node::InstanceName(record.instance);
    BERTH_ASSIGN(operation.mode, policies::rung_from(record.mode));
    BERTH_ASSIGN(operation.reached, policies::rung_from(reader.string("reached", record.mode)));
    operation.object = reader.string("object", "");
    operation.cause = reader.string("cause", "");
    operation.dry_run = reader.boolean("dryRun", false);
    operation.drop = reader.boolean("drop", false);
    operation.message = reader.string("message", "");
    operation.bytes_saved = reader.unsigned_integer("bytesSaved", 0);
    operation.bytes_moved = reader.unsigned_integer("bytesMoved", 0);
    BERTH_TRY(reader.finish());
    operation.state = record.state == "Running"     ? node::OperationState::kRunning
                      : record.state == "Succeeded" ? node::OperationState::kSucceeded
                                                    : node::OperationState::kFailed;
    if (!record.error.empty()) {
        BERTH_ASSIGN(json::value error, json::parse(record.error, what));
        operation.error = json::to_error(error);
    }
    operation.bytes_freed = static_cast<uint64_t>(record.bytes_freed);
    operation.phases = phases_from(phases);
    // Steady time does not survive a process: count back from now.
    auto age = std::chrono::milliseconds(std::max<int64_t>(0, wall_clock_ms() - record.started_ms));
    operation.started_at = std::chrono::steady_clock::now() - age;
    operation.phase_started = std::chrono::steady_clock::now();
    entry.request_id = record.request_id;
    entry.started_ms = record.started_ms;
    entry.ended_ms = record.ended_ms;
    return entry;
}

MetaRecord cordon_record(const node::Device& device) {
    return MetaRecord{"cordon/" + device.id.value,
                      device.cordoned ? "cordoned: " + device.cordon_reason : ""};
}

void take_cordon(node::DeviceSeen& device, const MetaRecord& record) {
    if (record.key != "cordon/" + device.id.value || record.value.empty())
        return;
    device.cordoned = true;
    device.cordon_reason = record.value.substr(std::string_view("cordoned: ").size());
}

PlacementRecord to_record(const node::WeightSet& set) {
    return to_record(node::durable(set));
}

PlacementRecord to_record(const node::WeightsAdopted& kept) {
    PlacementRecord row;
    row.weight_set = kept.id.value;
    row.device = kept.device.value;
    row.model = kept.model.value;
    row.path = kept.path;
    row.fingerprint = kept.fingerprint;
    row.bytes = static_cast<int64_t>(kept.bytes);
    row.extra = json::serialize(json::object{
        {"pinned", kept.pinned},
        {"dtype", kept.dtype},
        {"quantization", kept.quantization},
        {"rank", kept.rank},
        {"ranks", kept.ranks},
        {"source", kept.source},
        {"madeOn", kept.made_on.value},
        {"file", kept.file},
    });
    return row;
}

node::WeightsAdopted adopted_from(const PlacementRecord& record) {
    node::WeightsAdopted event;
    event.id = node::WeightSetId(record.weight_set);
    event.fingerprint = record.fingerprint;
    event.device = node::DeviceId(record.device);
    event.bytes = static_cast<uint64_t>(record.bytes);
    event.path = record.path;
    event.model = node::ModelName(record.model);
    // A record whose extra field cannot be read costs its pin, not the set.
    if (auto extra = parse_or_empty(record.extra, "the record of a weight set")) {
        json::Reader reader(*extra, "the record of a weight set");
        reader.allow_unknown();
        event.pinned = reader.boolean("pinned", false);
        event.dtype = reader.string("dtype", "auto");
        event.quantization = reader.string("quantization", "none");
        event.rank = static_cast<uint32_t>(reader.unsigned_integer("rank", 0));
        event.ranks = static_cast<uint32_t>(reader.unsigned_integer("ranks", 1));
        event.source = reader.string("source", "");
        event.made_on = node::DeviceId(reader.string("madeOn", ""));
        event.file = reader.string("file", "");
    }
    return event;
}

DecisionRecord to_record(const node::Decision& decision, const std::string& id) {
    json::array inputs;
    for (const auto& [name, value] : decision.inputs)
        inputs.push_back(json::object{{"name", name}, {"value", value}});
    json::array candidates;
    for (const node::Decision::Candidate& one : decision.candidates)
        candidates.push_back(json::object{
            {"name", one.name}, {"why", one.why}, {"taken", one.taken}, {"bytes", one.bytes}});
    int64_t now = wall_clock_ms();
    json::object document{
        {"id", id},
        {"timeMs", now},
        {"kind", decision.kind},
        {"object", decision.object},
        {"inputs", std::move(inputs)},
        {"candidates", std::move(candidates)},
        {"winner", decision.winner},
        {"outcome", decision.outcome},
        {"carriedOut", decision.carried_out},
    };
    return DecisionRecord{id, now, decision.kind, json::serialize(document)};
}

} // namespace berth
