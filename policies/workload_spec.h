// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/node_spec.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// kind: Model and kind: Instance.
namespace berth::policies {

struct ModelSpec {
    std::string name;
    std::string path;           // the checkpoint's folder
    std::string dtype = "auto"; // auto (as stored) | float32 | bfloat16 | float16
    std::string quantization = "none";
    uint32_t tensor_parallel = 1;
    bool pin = false; // never dropped to make room
    Origin origin;
    bool operator==(const ModelSpec&) const = default;
};

// kind: Instance -------------------------------------------------------------------------------

enum class DriverKind { kBerth, kProcess }; // kProcess: any program, without a session
enum class RestartPolicy { kAlways, kOnFailure, kNever };
// Where a standby's memory comes from when it takes over: the one before leaves it, or it has its
// own from the start.
enum class StandbyGrant { kTakeOver, kReserved };
struct SloSpec {
    Nanoseconds ttft{0};
    Nanoseconds tpot{0};
    double percentile = 99;
    bool operator==(const SloSpec&) const = default;
};
struct EngineSpec {
    DriverKind driver = DriverKind::kBerth;
    std::vector<std::string> command;
    std::string user; // empty: the daemon's own
    std::map<std::string, std::string> environment;
    std::string working_directory = "/";
    Nanoseconds start_deadline = std::chrono::seconds(120); // from start to Ready
    // The socket that berthd holds for it, "HOST:PORT" or "unix:/PATH"; empty: none.
    std::string listen;
    bool journal = true; // requests in flight outlive the process (with `listen`, driver berth)
    Nanoseconds step_deadline = std::chrono::seconds(10); // a longer step: it is stuck
    bool operator==(const EngineSpec&) const = default;
};
struct InstanceSpec {
    std::string name;
    std::string model;                 // may be empty with driver process
    std::string class_name;            // priorityClassName, the global default filled in
    std::string tenant;                // empty: nobody's
    std::vector<std::string> devices;  // empty: auto
    uint32_t device_count = 1;         // devices that it takes at once, all or none
    uint32_t ranks = 1;                // processes that share its model, by the Model's word
    uint64_t memory_request_bytes = 0; // of grant: KV cache and work space; on each device, or
                                       // of each rank
    uint64_t memory_limit_bytes = 0;   // default: the request
    std::optional<SloSpec> slo;
    RestartPolicy restart = RestartPolicy::kOnFailure;
    // Not empty: it stands by for that instance, and is in all else what that one is.
    std::string standby_of;
    StandbyGrant standby_grant = StandbyGrant::kTakeOver;
    EngineSpec engine;
    Origin origin;
    Mark model_mark, class_mark, tenant_mark, devices_mark, memory_mark, standby_mark, listen_mark,
        device_count_mark;
    bool operator==(const InstanceSpec&) const = default;
    // Ranks on each of its devices, and how many times its grant is taken in all.
    uint32_t ranks_each() const { return ranks > device_count ? ranks / device_count : 1; }
    uint32_t grants() const { return ranks > device_count ? ranks : device_count; }
};
// Changes exactly when a running process no longer is what the spec says (model, devices, engine):
// 16 hexadecimal digits.
std::string process_digest(const InstanceSpec& instance, const ModelSpec* model);
// Of them, only what may change what a request means: the model, the command and its environment.
std::string requests_digest(const InstanceSpec& instance, const ModelSpec* model);

} // namespace berth::policies
