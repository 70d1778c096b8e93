// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/bench.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

// What several benches ask of the node.
namespace berth::cli::bench {

Result<json::object> instance_of(const AdminClient& client, const std::string& name);
Result<uint64_t> free_bytes(const AdminClient& client, const std::string& device);
uint64_t tokens_done(const json::object& instance);

struct Finished {
    json::object operation;
    double wall_ms = 0; // from the request until its end was known here
};
// Begins an operation and waits for its end; a failed one is its error.
Result<Finished> run_to_end(const AdminClient& client, const std::string& target,
                            const json::object& body);

// Milliseconds from `since` until tokensDone is above `before` (of the same process), or below it
// and not zero (a new process). Instances report their first token after a change at once, others
// about once a second. Nothing when no token comes within `limit`.
Result<std::optional<double>> until_token(const AdminClient& client, const std::string& name,
                                          uint64_t before,
                                          std::chrono::steady_clock::time_point since,
                                          std::chrono::milliseconds limit);
// The same until the instance is Running; Failed is an error.
Result<double> until_running(const AdminClient& client, const std::string& name,
                             std::chrono::steady_clock::time_point since);

// User and system time that a process has used so far.
Result<double> cpu_seconds(uint64_t pid);
// One trip to berthd and back by the admin socket, `rounds` times.
Result<std::vector<double>> round_trips(const AdminClient& client, int rounds);
// Starts a program that ends at once (--help, --version) and waits for it, `rounds` times.
Result<std::vector<double>> program_starts(const std::vector<std::string>& command, int rounds);

} // namespace berth::cli::bench
