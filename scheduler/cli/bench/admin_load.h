// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace berth::cli::bench {

// What is asked of an admin socket.
struct LoadPlan {
    std::string socket;
    std::vector<std::string> reads; // targets, drawn from a seed; "{operation}": the newest known
    size_t connections = 8;         // each asks again as soon as it is answered
    std::chrono::milliseconds duration{2000};
    // So many a second, evenly, each preempting (Pause) or resuming the next of the instances, and
    // waited for until its end. None: only reads.
    double changes_per_second = 0;
    std::vector<std::string> instances;
    std::string operation; // known beforehand
};

struct LoadOutcome {
    double seconds = 0;
    std::vector<double> read_ms;   // from the request until the whole reply
    std::vector<double> change_ms; // from the request until the operation has succeeded
    uint64_t body_bytes = 0;       // of all reads
    double changes_per_second = 0; // that were done
    double own_cpu_seconds = 0;    // of this generator
};

// Keeps `connections` lines busy from the calling thread, by readiness. Any reply but a success is
// an error that quotes it: a rate of refusals is no rate.
Result<LoadOutcome> run_load(const LoadPlan& plan);

} // namespace berth::cli::bench
