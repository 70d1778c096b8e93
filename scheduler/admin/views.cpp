// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/views.h"

#include "base/unique_fd.h"
#include "scheduler/act/crew.h"
#include "scheduler/act/rank_name.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unistd.h>

namespace berth::views {

namespace {

json::array phases_list(const node::Phases& phases) {
    json::array listed;
    for (const auto& [name, ms] : phases)
        listed.push_back(json::object{{"name", name}, {"ms", ms}});
    return listed;
}

json::object phases_map(const node::Phases& phases) {
    json::object mapped;
    for (const auto& [name, ms] : phases)
        mapped[name] = ms;
    return mapped;
}

std::string_view kind_of(node::LedgerLine::Kind kind) {
    switch (kind) {
    case node::LedgerLine::Kind::kWeights:
        return "weights";
    case node::LedgerLine::Kind::kGrant:
        return "grant";
    case node::LedgerLine::Kind::kOverhead:
        return "overhead";
    case node::LedgerLine::Kind::kLoader:
        return "staging";
    }
    return "grant";
}

json::object counters_json(const node::Counters& counters) {
    return {{"requestsRunning", counters.requests_running},
            {"requestsWaiting", counters.requests_waiting},
            {"shortOfMemory", counters.short_of_memory},
            {"requestsDone", counters.requests_done},
            {"tokensDone", counters.tokens_done},
            {"stepsDone", counters.steps_done},
            {"gatePauses", counters.gate_pauses},
            {"grantBytes", counters.grant_bytes},
            {"batchDone", counters.batch_done},
            {"batchTotal", counters.batch_total}};
}

json::object preempted_json(const node::PreemptionTotals& all) {
    return {{"count", all.count},
            {"bytesFreed", all.bytes_freed},
            {"bytesSaved", all.bytes_saved},
            {"bytesMoved", all.bytes_moved}};
}

std::string_view state_word(const node::WeightSet& set) {
    if (set.dropping)
        return "Dropping";
    if (node::is_tier(set.device))
        return set.device == node::kHostTier ? "HostTier" : "Image";
    return set.stale ? "Stale" : "Resident";
}

json::object resident_json(const NodeContext& context, const node::WeightSet& set) {
    json::object shown{{"id", set.id.value},
                       {"fingerprint", set.fingerprint},
                       {"model", set.models.empty() ? "" : set.models.begin()->value},
                       {"path", set.keys.empty() ? "" : set.keys.begin()->path},
                       {"device", set.device.value},
                       {"bytes", set.bytes},
                       {"tensors", 0},
                       {"state", state_word(set)},
                       {"pinned", set.pinned},
                       {"progress", nullptr},
                       {"loadedMs", nullptr}};
    json::array leases;
    for (const std::string& holder : node::lease_holders(context.state(), set))
        leases.emplace_back(holder);
    shown["leases"] = leases.size();
    json::array tiers;
    for (const node::DeviceId& place : node::places_of(context.state(), set.id))
        tiers.emplace_back(place.value);
    shown["tiers"] = std::move(tiers);
    shown["loadedFrom"] = set.source;
    shown["image"] = "";
    if (const auto* image = node::find_set(context.state(), set.id, node::kImageTier))
        shown["image"] = image->file;
    const auto hash = context.deep_hashes.find(set.id.value);
    shown["deepHash"] = hash == context.deep_hashes.end() ? "" : hash->second;
    shown["holders"] = std::move(leases);
    const bool in_tier = set.device == node::kHostTier;
    for (const ResidentSet* resident : (in_tier ? context.host_tier : context.catalogue).all()) {
        if (resident->id != set.id.value || resident->device != set.device.value)
            continue;
        shown["tensors"] = resident->tensors;
        const bool published = !set.keys.empty() && node::is_published(*set.keys.begin());
        shown["published"] = published;
        if (published || (resident->path != "" && set.keys.empty()))
            shown["path"] = resident->path;
        shown["loadedAt"] = timestamp(resident->loaded_at_ms);
        shown["bytesRead"] = resident->bytes_read;
        shown["phases"] = phases_map(resident->phases);
        double total = 0;
        for (const auto& [name, ms] : resident->phases)
            total += ms;
        auto whole = resident->phases.find("total");
        shown["loadedMs"] = whole != resident->phases.end() ? whole->second : total;
        auto document = json::parse(resident->fingerprint_json, "the fingerprint");
        if (document)
            shown["fingerprintDocument"] = *document;
    }
    return shown;
}

// How far a load is, and at its rate since Go how long it will go on.
json::object progress_json(const node::Load& load) {
    json::object progress{{"phase", load.phase},
                          {"bytesDone", load.bytes_done},
                          {"bytesTotal", load.bytes_total},
                          {"bytesPerSecond", nullptr},
                          {"secondsLeft", nullptr}};
    const std::chrono::duration<double> passed = load.progress_at - load.placed_at;
    if (!load.placed || passed.count() <= 0 || load.bytes_done == 0)
        return progress;
    const double rate = static_cast<double>(load.bytes_done) / passed.count();
    const uint64_t left = load.bytes_total - std::min(load.bytes_total, load.bytes_done);
    progress["bytesPerSecond"] = static_cast<uint64_t>(rate);
    progress["secondsLeft"] = static_cast<double>(left) / rate;
    return progress;
}

json::object load_json(const node::Load& load) {
    return {{"id", fmt::format("load-{}", static_cast<uint64_t>(load.id))},
            {"fingerprint", ""},
            {"model", load.model.value},
            {"path", load.key.path},
            {"device", load.key.device.value},
            {"bytes", load.weight_bytes},
            {"tensors", 0},
            {"state", load.is_private ? "Private" : "Loading"},
            {"loadedFrom", load.source.empty() ? "checkpoint" : load.source.value},
            {"holder", load.holder},
            {"pinned", false},
            {"leases", 0},
            {"progress", progress_json(load)},
            {"loadedMs", nullptr}};
}

} // namespace

std::string timestamp(int64_t wall_ms) {
    if (wall_ms == 0)
        return "";
    auto seconds = static_cast<std::time_t>(wall_ms / 1000);
    return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), wall_ms % 1000);
}

json::object device(const NodeContext& context, const node::Device& device,
                    const DriverBytes& driver) {
    node::DeviceUsage usage = node::usage(context.state(), device.id);
    json::array owners;
    for (const node::LedgerLine& line : usage.lines)
        owners.push_back(json::object{{"kind", kind_of(line.kind)},
                                      {"name", line.owner},
                                      {"bytes", line.bytes},
                                      {"state", line.kind == node::LedgerLine::Kind::kGrant
                                                    ? to_string(line.grant_state)
                                                    : std::string_view()},
                                      {"reclaimable", line.reclaimable}});
    if (usage.reserve_bytes > 0)
        owners.push_back(json::object{{"kind", "reserve"},
                                      {"name", "memory.deviceReserve"},
                                      {"bytes", usage.reserve_bytes},
                                      {"state", ""},
                                      {"reclaimable", false}});
    json::object shown{{"id", device.id.value},
                       {"kind", to_string(device.kind)},
                       {"name", device.name},
                       {"totalBytes", usage.total_bytes},
                       {"reserveBytes", usage.reserve_bytes},
                       {"usedBytes", usage.used_bytes()},
                       {"weightBytes", usage.weight_bytes},
                       {"grantBytes", usage.grant_bytes},
                       {"driverUsedBytes", nullptr},
                       {"freeBytes", usage.free_bytes},
                       {"reclaimableBytes", usage.reclaimable_bytes},
                       {"cordoned", device.cordoned},
                       {"cordonReason", device.cordon_reason},
                       {"drainedBy", ""},
                       {"owners", std::move(owners)}};
    for (const auto& [id, operation] : context.state().operations)
        if (operation.kind == node::OperationKind::kDrainDevice &&
            operation.object == "device/" + device.id.value)
            shown["drainedBy"] = id.value;
    if (auto found = driver.find(device.id.value); found != driver.end())
        shown["driverUsedBytes"] = found->second;
    return shown;
}

json::object database(const Store& store, const DecisionLoop& loop) {
    const StoreStatus status = store.status();
    json::object shown{{"path", store.path()},
                       {"writable", !status.trouble.has_value()},
                       {"bytes", status.bytes},
                       {"walBytes", status.wal_bytes},
                       {"batchesWaiting", status.batches_waiting},
                       {"eventsHeld", loop.events_held()}};
    if (!status.trouble)
        return shown;
    const auto since = std::chrono::steady_clock::now() - status.trouble_since;
    shown["reason"] = status.trouble->reason;
    shown["message"] = status.trouble->message;
    shown["sinceMs"] = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
    return shown;
}

json::array tiers(const NodeContext& context) {
    json::array listed;
    for (const node::DeviceId& tier : {node::kHostTier, node::kImageTier}) {
        const node::TierUsage usage = node::tier_usage(context.state(), tier);
        const bool is_image = tier == node::kImageTier;
        listed.push_back(json::object{
            {"name", tier.value},
            {"folder", is_image ? context.state().policy.memory.image_dir : std::string()},
            {"limitBytes", usage.limit_bytes},
            {"usedBytes", usage.used_bytes},
            {"makingBytes", usage.making_bytes},
            {"copies", usage.copies}});
    }
    return listed;
}

std::vector<WeightsLine> weights_lines(const node::NodeState& state) {
    std::vector<WeightsLine> lines;
    for (const auto& [key, set] : state.weights)
        if (!node::is_tier(set.device))
            lines.push_back({key, {}});
    // Copies show with the set that they are of, or as themselves when no device has it, or when
    // they could not be removed.
    for (const auto& [key, set] : state.weights) {
        const std::vector<node::DeviceId> places = node::places_of(state, set.id);
        const bool is_top = !places.empty() && places.front() == set.device;
        if (node::is_tier(set.device) && (is_top || !set.drop_error.empty()))
            lines.push_back({key, {}});
    }
    for (const auto& [id, load] : state.loads)
        if (!load.sealed && load.copy_to.empty() && load.state != node::Load::State::kEnding)
            lines.push_back({std::nullopt, id});
    return lines;
}

std::string id_of(const WeightsLine& line) {
    return line.set ? line.set->second.value
                    : fmt::format("load-{}", static_cast<uint64_t>(line.load));
}

std::optional<json::object> weights_line(const NodeContext& context, const WeightsLine& line) {
    const node::NodeState& state = context.state();
    if (line.set) {
        const auto found = state.weights.find(*line.set);
        return found == state.weights.end() ? std::optional<json::object>()
                                            : resident_json(context, found->second);
    }
    const auto found = state.loads.find(line.load);
    return found == state.loads.end() ? std::optional<json::object>() : load_json(found->second);
}

json::object instance(const node::Instance& instance, node::TimePoint now) {
    json::array devices;
    for (const node::DeviceId& device : instance.devices)
        devices.emplace_back(device.value);
    auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - instance.since);
    return {{"name", instance.name.value},
            {"model", instance.spec.model},
            {"priorityClass", instance.spec.class_name},
            {"priority", instance.priority},
            {"driver", policies::to_string(instance.spec.engine.driver)},
            {"state", to_string(instance.state)},
            {"substate", instance.substate},
            {"desired", to_string(instance.desired)},
            {"heldBy", to_string(instance.held_by)},
            {"onHold", instance.on_hold},
            {"reason", instance.reason},
            {"message", instance.message},
            {"device", instance.devices.empty() ? "" : instance.devices.front().value},
            {"devices", std::move(devices)},
            {"pid", instance.process.pid},
            {"connected", instance.session},
            {"endpoint", instance.endpoint},
            {"listen", instance.spec.engine.listen},
            {"standbyOf", instance.spec.standby_of},
            {"role", instance.spec.engine.listen.empty() ? ""
                     : instance.stands_by                ? "Standby"
                                                         : "Active"},
            {"generation", instance.generation},
            {"grantState", to_string(instance.grant_state)},
            {"grantBytes", instance.grant_bytes},
            {"grantBytesMax", instance.spec.memory_limit_bytes},
            {"overheadBytes", instance.overhead_bytes},
            {"hostBytes", instance.host_bytes},
            {"weightSet", instance.weights.empty() ? "" : instance.weights.front().value},
            {"weights", instance.weights_source},
            {"starts", instance.starts},
            {"restarts", instance.restarts},
            {"phases", phases_map(instance.phases)},
            {"counters", counters_json(instance.counters)},
            {"preempted", preempted_json(instance.preempted)},
            {"operation", instance.operation ? instance.operation->value : ""},
            {"sinceMs", since.count()}};
}

// A line for each of several ranks; phases by its own word.
void add_ranks(json::object& shown, const NodeContext& context, const node::Instance& instance,
               const Crew* crew) {
    if (instance.ranks == 1)
        return;
    json::array ranks;
    for (uint32_t rank = 0; rank < instance.ranks && rank < instance.devices.size(); ++rank) {
        const node::InstanceName name = rank_name(instance.name, rank);
        json::object one{{"rank", rank},
                         {"device", instance.devices[rank].value},
                         {"pid", instance.rank_process(rank).process.pid},
                         {"weightSet", rank < instance.weights.size() ? instance.weights[rank].value
                                                                      : std::string()},
                         {"log", context.paths.engine_log(name)}};
        one["phases"] = crew == nullptr || rank >= crew->size() ? json::object()
                                                                : phases_map(crew->phases(rank));
        ranks.push_back(std::move(one));
    }
    shown["ranks"] = std::move(ranks);
}

void add_start(json::object& shown, const NodeContext& context, const node::Instance& instance) {
    const auto found = context.starts.find(instance.name);
    const bool known = found != context.starts.end() && found->second.process == instance.process;
    const std::string why = known ? found->second.why_exec : std::string();
    shown["startedBy"] = !known ? "" : why.empty() ? "forked" : "exec";
    shown["execBecause"] = why;
}

json::object operation(const OperationEntry& entry) {
    const node::Operation& operation = entry.operation;
    bool preempts = operation.kind == node::OperationKind::kPreempt;
    json::object shown{{"id", operation.id.value},
                       {"requestId", entry.request_id},
                       {"kind", node::to_string(operation.kind)},
                       {"instance", operation.instance.value},
                       {"object", operation.object},
                       {"mode", preempts ? policies::to_string(operation.mode) : ""},
                       {"reached", preempts ? policies::to_string(operation.reached) : ""},
                       {"reason", operation.cause},
                       {"dryRun", operation.dry_run},
                       {"state", node::to_string(operation.state)},
                       {"message", operation.message},
                       {"phases", phases_list(operation.phases)},
                       {"bytesFreed", operation.bytes_freed},
                       {"bytesSaved", operation.bytes_saved},
                       {"bytesMoved", operation.bytes_moved},
                       {"error", nullptr},
                       {"startedAt", timestamp(entry.started_ms)},
                       {"endedAt", nullptr},
                       {"ms", nullptr}};
    if (operation.error)
        shown["error"] = json::from_error(*operation.error);
    if (entry.ended_ms != 0) {
        shown["endedAt"] = timestamp(entry.ended_ms);
        shown["ms"] = entry.ended_ms - entry.started_ms;
    }
    return shown;
}

json::object event(const EventRecord& record) {
    return {{"revision", record.revision}, {"time", timestamp(record.time_ms)},
            {"kind", record.kind},         {"object", record.object},
            {"reason", record.reason},     {"message", record.message}};
}

uint64_t resident_bytes() {
    auto statm = read_file("/proc/self/statm", 4096);
    if (!statm)
        return 0;
    size_t space = statm->find(' ');
    uint64_t pages = 0;
    if (space != std::string::npos)
        std::from_chars(statm->data() + space + 1, statm->data() + statm->size(), pages);
    return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

} // namespace berth::views
