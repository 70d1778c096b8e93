// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "policies/spec.h"
#include "scheduler/simulate/arrivals.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace berth::simulate {

// What an engine is like, roughly: enough to compare policies, not to predict an engine.
struct ServiceModel {
    double prefill_tokens_per_second = 20'000;
    double decode_tokens_per_second = 60; // of one request, beside others
    uint64_t requests_max = 64;           // at once, of one engine
    uint64_t kv_bytes_per_token = 128 << 10;
    Nanoseconds gate_delay = std::chrono::milliseconds(3); // until batch is at a boundary
    Nanoseconds start_time = std::chrono::seconds(4);      // of a process, until Ready
    uint64_t weight_bytes = 16ULL << 30;                   // of each Model
    uint64_t load_bytes_per_second = 4ULL << 30;
    uint64_t gpu_bytes = 80ULL << 30; // where the documents name no devices
    uint64_t gpus = 1;
};

// Milliseconds at 50, 90 and 99 percent, and the most.
struct Percentiles {
    double p50 = 0, p90 = 0, p99 = 0, most = 0;
};

struct ReplayReport {
    struct Wait {
        double total_seconds = 0; // not Running, and not of its own or an operator's will
        double longest_seconds = 0;
        std::string last_reason;
    };
    uint64_t requests = 0;
    uint64_t not_served = 0;
    double seconds = 0;        // of the node's time
    Percentiles ttft_ms;       // with batch beside it
    Percentiles ttft_alone_ms; // the same requests with no batch on the node
    Percentiles ttft_added_ms; // request by request
    double batch_hours = 0;    // of engines at work, one beside the other
    std::map<std::string, double> batch_hours_by_instance;
    std::map<std::string, uint64_t> preemptions; // by rung, of the planner
    uint64_t gate_closings = 0;
    std::map<std::string, Wait> waits; // of instances that waited
};

// Plays the arrivals to the online instances of the documents, twice: with all instances, and
// without those that may be preempted. The node's decisions are the real ones. InvalidArgument when
// no instance could serve a request.
Result<ReplayReport> replay(const policies::Documents& documents,
                            const std::vector<Arrival>& arrivals, const ServiceModel& model = {});

std::string to_text(const ReplayReport& report); // for people

} // namespace berth::simulate
