// SPDX-License-Identifier: Apache-2.0
#include "sqlite_records.h"

#include "scheduler/act/record_mapping.h"

#include <cstdlib>
#include <filesystem>

namespace berth::simulate {

namespace {

std::string difference(const node::InstanceRecovered& is, const node::InstanceRecovered& was) {
    const std::string who = "the record of " + was.name.value + " came back with another ";
    if (is.state != was.state || is.desired != was.desired || is.held_by != was.held_by)
        return who + "state";
    if (is.reason != was.reason || is.message != was.message)
        return who + "reason";
    if (is.devices != was.devices || is.weights != was.weights)
        return who + "place";
    if (!(is.process == was.process) || is.token_sha256 != was.token_sha256 ||
        is.process_digest != was.process_digest)
        return who + "process";
    if (is.grant_bytes != was.grant_bytes || is.grant_bytes_resume != was.grant_bytes_resume ||
        is.overhead_bytes != was.overhead_bytes || is.host_bytes != was.host_bytes)
        return who + "figure of bytes";
    if (is.starts != was.starts || is.restarts != was.restarts || is.on_hold != was.on_hold ||
        is.disruptions.size() != was.disruptions.size())
        return who + "count";
    return "";
}

std::string difference(const node::Operation& is, const node::Operation& was) {
    if (is.kind == was.kind && is.instance == was.instance && is.object == was.object &&
        is.mode == was.mode && is.reached == was.reached && is.dry_run == was.dry_run)
        return "";
    return "the record of operation " + was.id.value + " came back as another";
}

std::string difference(const node::WeightsAdopted& is, const node::WeightsAdopted& was) {
    if (is.fingerprint == was.fingerprint && is.bytes == was.bytes && is.path == was.path &&
        is.dtype == was.dtype && is.quantization == was.quantization && is.pinned == was.pinned &&
        is.made_on == was.made_on && is.file == was.file && is.source == was.source)
        return "";
    return "the record of weight set " + was.id.value + " came back as another";
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
            InstanceRecord row = to_record(persist->instance, 0);
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
        !left.cordons.empty())
        wrong = "records that were written are gone";
    if (!failure_.empty() || failed_)
        wrong = "the store: " + (failure_.empty() ? "a batch could not be written" : failure_);
    return durable_;
}

} // namespace berth::simulate
