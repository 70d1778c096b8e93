// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

// What berthd writes down: plain rows, as the tables hold them. Structured fields that nothing
// searches by (specs, phases) are JSON text.
namespace berth {

struct InstanceRecord {
    std::string name; // key
    std::string spec;
    std::string state;
    std::string desired;
    std::string device;
    int64_t pid = 0;
    int64_t start_ticks = 0;
    std::string token_hash;
    int64_t grant_bytes = 0;
    std::string weight_set;
    int64_t restarts = 0;
    std::string reason;
    std::string message;
    std::string endpoint;
    std::string phases; // JSON object: name -> ms
    std::string extra;  // JSON object: what later versions add
    bool operator==(const InstanceRecord&) const = default;
};

struct OperationRecord {
    std::string id;         // key
    std::string request_id; // the newest under it has it; empty: none
    std::string kind;
    std::string instance;
    std::string mode;
    std::string state;
    std::string phases; // JSON array of {name, ms}
    int64_t bytes_freed = 0;
    std::string error;      // JSON object, empty for none
    int64_t started_ms = 0; // wall clock
    int64_t ended_ms = 0;   // 0 while it runs
    std::string extra;
    bool operator==(const OperationRecord&) const = default;
};

struct DecisionRecord {
    std::string id; // key
    int64_t time_ms = 0;
    std::string kind;
    std::string document; // JSON
    bool operator==(const DecisionRecord&) const = default;
};

struct EventRecord {
    int64_t revision = 0; // key, grows by one an event
    int64_t time_ms = 0;
    std::string kind;
    std::string object;
    std::string reason;
    std::string message;
    bool operator==(const EventRecord&) const = default;
};

// Where a weight set lies, or lay.
struct PlacementRecord {
    std::string weight_set; // key, with device
    std::string device;
    std::string model;
    std::string path;
    std::string fingerprint;
    int64_t bytes = 0;
    std::string extra;
    bool operator==(const PlacementRecord&) const = default;
};

// One document of policy as it was last applied.
struct PolicyRecord {
    std::string source; // key: "NUMBER FILE", in the order of application
    std::string text;
    bool operator==(const PolicyRecord&) const = default;
};

struct MetaRecord {
    std::string key;
    std::string value;
    bool operator==(const MetaRecord&) const = default;
};

struct ForgetInstance {
    std::string name;
};
struct ForgetPlacement {
    std::string weight_set;
    std::string device;
};
struct ForgetPolicy {
    std::string source;
};

// One row to put (insert or replace) or to forget.
using StoreWrite =
    std::variant<InstanceRecord, OperationRecord, DecisionRecord, EventRecord, PlacementRecord,
                 PolicyRecord, MetaRecord, ForgetInstance, ForgetPlacement, ForgetPolicy>;

// All that a new daemon needs of the old one's records.
struct StoredState {
    std::vector<InstanceRecord> instances;
    std::vector<OperationRecord> operations; // the newest, oldest first
    std::vector<DecisionRecord> decisions;   // the newest, oldest first
    std::vector<EventRecord> events;         // the newest, oldest first
    std::vector<PlacementRecord> placements;
    std::vector<PolicyRecord> policies;
    std::vector<MetaRecord> meta;
    int64_t first_revision = 0; // of all events kept; 0: none
    int64_t last_revision = 0;
};

} // namespace berth
