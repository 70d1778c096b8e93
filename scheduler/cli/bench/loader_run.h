// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"

#include <string>
#include <vector>

namespace berth::cli::bench {

// berth-loader run once by hand, and what it said.
struct Loaded {
    double wall_ms = 0;     // the loader's start until its end
    double transfer_ms = 0; // first byte read until all are on the device
    double bytes = 0;       // read
    json::object outcome;
    double wall_rate() const { return bytes / 1e6 / wall_ms; }
    double transfer_rate() const { return bytes / 1e6 / transfer_ms; }
};

// Waits for its end. `arguments` besides --json.
Result<Loaded> run_loader(const std::vector<std::string>& arguments);

} // namespace berth::cli::bench
