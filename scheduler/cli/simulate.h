// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/output.h"

#include <cstdint>
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace berth::cli {

// `berth simulate`: no node is asked. One of three: an arrival trace against a policy, seeds of a
// node under faults, or one run of those again from its printed trace.
struct SimulateOptions {
    std::string trace;  // a CSV of arrivals
    std::string policy; // files and folders of documents
    std::string replay; // a printed trace of a run
    uint64_t seeds = 0;
    uint64_t events = 300;
    uint64_t first_seed = 1;
    double prefill = 20'000, decode = 60; // tokens per second
    std::string weights = "16Gi", device_memory = "80Gi", start_time = "4s";
    uint64_t gpus = 1;
};

// Prints what came of it. A seed that breaks a rule is an error, its shortest trace printed before.
Status simulate_node(Format format, const SimulateOptions& options);

// The command's words. `format` and `run` outlive the parsing; `run` is set when it was asked for.
void add_simulate(CLI::App& app, const std::string& format, std::function<Status()>& run);

} // namespace berth::cli
