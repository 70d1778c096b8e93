// SPDX-License-Identifier: Apache-2.0
#include "sqlite_records.h"

#include "scheduler/act/record_mapping.h"
#include "scheduler/act/rollout_record.h"
#include "scheduler/node/durable.h"

#include <cstdlib>
#include <filesystem>

namespace berth::simulate {

namespace {

// Names the first field that differs.
class Comparison {
  public:
    explicit Comparison(std::string of_what) : text_(std::move(of_what)) {}
    Comparison& same(bool is_same, const char* field) {
        if (!is_same && field_.empty())
            field_ = field;
        return *this;
    }
    std::string words() const {
        return field_.empty() ? "" : text_ + " came back with another " + field_;
    }

  private:
    std::string text_, field_;
};

// Each field is named once in a binding: one that is new does not compile until it is compared here
// too. Times are ages by the real clock, and only there or not.
std::string difference(const node::InstanceRecovered& is, const node::InstanceRecovered& was) {
    const auto& [name, state, desired, held_by, reason, message, devices, weights, ranks, process,
                 others, alive, never_started, token, digest, endpoint, grant, grant_resume,
                 grant_next, shrunk_by, came_from, overhead, host, starts, restarts, phases,
                 on_hold, service, stands_by, generation, journals, requests_digest, start_took,
                 waiting_since, disruptions] = was;
    return Comparison("the record of " + name.value)
        .same(is.name == name && is.alive == alive && is.never_started == never_started, "name")
        .same(is.state == state, "state")
        .same(is.desired == desired, "desired state")
        .same(is.held_by == held_by, "holder")
        .same(is.reason == reason && is.message == message, "reason")
        .same(is.devices == devices && is.weights == weights, "place")
        .same(is.process == process && is.token_sha256 == token, "process")
        .same(is.ranks == ranks && is.others == others, "rank")
        .same(is.process_digest == digest && is.endpoint == endpoint, "digest or endpoint")
        .same(is.grant_bytes == grant && is.grant_bytes_resume == grant_resume, "grant")
        .same(is.grant_bytes_next == grant_next && is.shrunk_by == shrunk_by, "change of grant")
        .same(is.came_from == came_from, "state that it came from")
        .same(is.overhead_bytes == overhead && is.host_bytes == host, "overhead or host bytes")
        .same(is.starts == starts && is.restarts == restarts, "count of starts")
        .same(is.phases == phases, "phases")
        .same(is.on_hold == on_hold, "hold")
        .same(is.service == service && is.stands_by == stands_by && is.generation == generation,
              "service")
        .same(is.journals == journals && is.requests_digest == requests_digest, "journal")
        .same(is.start_took == start_took, "time of its start")
        .same(is.waiting_since.has_value() == waiting_since.has_value(), "wait")
        .same(is.disruptions.size() == disruptions.size(), "count of disruptions")
        .words();
}

std::string difference(const node::Operation& is, const node::Operation& was) {
    const auto& [id, kind, instance, object, mode, reached, cause, dry_run, drop, state, message,
                 error, bytes_freed, bytes_saved, bytes_moved, phases, started_at, phase_started] =
        was;
    const bool dated = is.started_at != node::TimePoint() && started_at != node::TimePoint() &&
                       is.phase_started != node::TimePoint() && phase_started != node::TimePoint();
    return Comparison("the record of operation " + id.value)
        .same(is.id == id && is.kind == kind && is.object == object, "kind or object")
        .same(is.instance == instance, "instance")
        .same(is.mode == mode && is.reached == reached, "rung")
        .same(is.cause == cause && is.message == message, "cause or message")
        .same(is.dry_run == dry_run && is.drop == drop, "flag")
        .same(is.state == state && is.error.has_value() == error.has_value(), "end")
        .same(is.bytes_freed == bytes_freed && is.phases == phases && dated, "figure")
        .same(is.bytes_saved == bytes_saved && is.bytes_moved == bytes_moved, "KV's bytes")
        .words();
}

std::string difference(const node::Rollout& is, const node::Rollout& was) {
    const auto& [instance, number, before, after, phase, first, surge, surge_stays, paused,
                 may_stop, made_room, undo, goes_back, adopted, cause, reason, message, started,
                 since, stopped_at, gap, said, standby, retry] = was;
    const bool untold = is.said == said && is.standby == standby && is.retry == retry;
    return Comparison("the record of the rollout of " + instance.value)
        .same(is.instance == instance && is.number == number && untold, "number")
        .same(is.before == before, "document before")
        .same(is.after == after, "document")
        .same(is.phase == phase && is.first == first, "phase")
        .same(is.surge == surge && is.surge_stays == surge_stays, "surge")
        .same(is.paused == paused && is.may_stop == may_stop && is.made_room == made_room &&
                  is.undo == undo && is.goes_back == goes_back && is.adopted == adopted,
              "flag")
        .same(is.cause == cause && is.reason == reason && is.message == message, "reason")
        .same((is.started == node::TimePoint()) == (started == node::TimePoint()) &&
                  (is.since == node::TimePoint()) == (since == node::TimePoint()) &&
                  is.stopped_at.has_value() == stopped_at.has_value() && is.gap == gap,
              "time")
        .words();
}

std::string difference(const node::WeightsAdopted& is, const node::WeightsAdopted& was) {
    const auto& [id, fingerprint, device, bytes, path, dtype, model, pinned, quantization, rank,
                 ranks, source, made_on, file, lost] = was;
    return Comparison("the record of weight set " + id.value)
        .same(is.id == id && is.device == device && is.fingerprint == fingerprint, "name")
        .same(is.bytes == bytes && is.lost == lost, "size")
        .same(is.path == path && is.dtype == dtype && is.quantization == quantization, "key")
        .same(is.rank == rank && is.ranks == ranks, "rank")
        .same(is.model == model && is.pinned == pinned, "model or pin")
        .same(is.source == source && is.made_on == made_on && is.file == file, "origin")
        .words();
}

template <typename Map, typename Key>
void compare(Map& left, const Key& key, const typename Map::mapped_type& is, std::string& wrong) {
    const auto was = left.find(key);
    if (was == left.end()) {
        wrong = "a record came back that nobody wrote, or that was forgotten";
        return;
    }
    if (const std::string text = difference(is, was->second); !text.empty())
        wrong = text;
    left.erase(was);
}

} // namespace

SqliteRecords::SqliteRecords() {
    std::string name = (std::filesystem::temp_directory_path() / "berth-simulator-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
        failure_ = "no temporary folder";
    folder_ = name;
    open();
}

SqliteRecords::~SqliteRecords() {
    store_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

StoredState SqliteRecords::open() {
    store_.reset();
    auto opened = Store::open(folder_);
    if (!opened) {
        failure_ = opened.error().message;
        return {};
    }
    if (!opened->warning.empty())
        failure_ = opened->warning;
    store_ = std::move(opened->store);
    return std::move(opened->state);
}

void SqliteRecords::post(std::vector<StoreWrite> batch) {
    if (!store_ || batch.empty())
        return;
    store_->post(std::move(batch), Durability::kIntent, [this](Status written) {
        if (!written)
            failed_ = true;
    });
    store_->flush();
}

void SqliteRecords::write(const std::vector<node::Action>& actions,
                          const std::map<node::InstanceName, std::string>& tokens,
                          node::TimePoint now) {
    Records::write(actions, tokens, now);
    std::vector<StoreWrite> batch;
    for (const node::Action& action : actions) {
        if (const auto* persist = std::get_if<node::PersistInstance>(&action)) {
            InstanceRecord row = to_record(node::durable(persist->instance), {});
            if (const auto token = tokens.find(persist->instance.name); token != tokens.end())
                row.token_hash = token->second;
            batch.emplace_back(std::move(row));
        } else if (const auto* forget = std::get_if<node::ForgetInstance>(&action)) {
            batch.emplace_back(ForgetInstance{forget->instance.value});
        } else if (const auto* operation = std::get_if<node::PersistOperation>(&action)) {
            OperationEntry entry;
            entry.operation = operation->operation;
            entry.started_ms = 1;
            batch.emplace_back(to_record(entry));
        } else if (const auto* rollout = std::get_if<node::PersistRollout>(&action)) {
            batch.emplace_back(to_record(rollout->rollout));
        } else if (const auto* over = std::get_if<node::ForgetRollout>(&action)) {
            batch.emplace_back(no_rollout(over->instance));
        } else if (const auto* weights = std::get_if<node::PersistWeights>(&action)) {
            batch.emplace_back(to_record(weights->set));
        } else if (const auto* keep = std::get_if<node::KeepWeights>(&action)) {
            batch.emplace_back(to_record(keep->set));
        } else if (const auto* device = std::get_if<node::PersistDevice>(&action)) {
            batch.emplace_back(cordon_record(device->device));
        } else if (const auto* decision = std::get_if<node::Decision>(&action)) {
            batch.emplace_back(
                to_record(*decision, "d-" + std::to_string(now.time_since_epoch().count()) + "-" +
                                         std::to_string(batch.size())));
        }
    }
    post(std::move(batch));
}

void SqliteRecords::keeper_seen(uint64_t keeper) {
    Records::keeper_seen(keeper);
    post({MetaRecord{"keeper", std::to_string(keeper)}});
}

void SqliteRecords::forget_weights(const node::WeightSetId& set, const node::DeviceId& device) {
    Records::forget_weights(set, device);
    post({ForgetPlacement{set.value, device.value}});
}

Durable SqliteRecords::read(node::TimePoint, std::string& wrong) {
    const StoredState stored = open();
    Durable left = durable_;
    for (const InstanceRecord& row : stored.instances) {
        const auto read = instance_from(row);
        if (!read)
            wrong = read.error().message;
        else
            compare(left.instances, read->event.name, read->event, wrong);
    }
    for (const OperationRecord& row : stored.operations) {
        const auto read = operation_from(row);
        if (!read)
            wrong = read.error().message;
        else if (read->operation.state == node::OperationState::kRunning)
            compare(left.operations, read->operation.id, read->operation, wrong);
    }
    for (const PlacementRecord& row : stored.placements) {
        const node::WeightsAdopted read = adopted_from(row);
        compare(left.placements, std::pair(read.device, read.id), read, wrong);
    }
    for (const MetaRecord& row : stored.meta) {
        if (row.key == "keeper" && row.value != std::to_string(left.keeper))
            wrong = "the keeper came back as another";
        if (is_rollout(row)) {
            if (const auto read = rollout_from(row))
                compare(left.rollouts, read->instance, *read, wrong);
            else
                wrong = read.error().message;
        }
        if (!row.key.starts_with("cordon/"))
            continue;
        node::DeviceSeen seen;
        seen.id = node::DeviceId(row.key.substr(7));
        take_cordon(seen, row);
        const auto was = left.cordons.find(seen.id);
        if (seen.cordoned != (was != left.cordons.end()) ||
            (seen.cordoned && seen.cordon_reason != was->second))
            wrong = "the cordon of " + seen.id.value + " came back as another";
        left.cordons.erase(seen.id);
    }
    if (!left.instances.empty() || !left.operations.empty() || !left.placements.empty() ||
        !left.cordons.empty() || !left.rollouts.empty())
        wrong = "records that were written are gone";
    if (!failure_.empty() || failed_)
        wrong = "the store: " + (failure_.empty() ? "a batch could not be written" : failure_);
    return durable_;
}

} // namespace berth::simulate
