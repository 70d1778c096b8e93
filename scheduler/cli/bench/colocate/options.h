// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace berth::cli::bench {

// What `berth bench colocate` is told; the defaults make a run of about six minutes.
struct ColocateOptions {
    std::string model;           // a checkpoint's folder
    std::string device = "auto"; // auto: the first GPU; host; or a GPU's UUID
    std::string programs;        // where berthd and the engines lie; empty: beside this program
    std::string out;             // where raw samples, plots and logs go; empty: nowhere
    std::string phases;          // empty: all, in their own order
    // When requests come, and how long they are.
    std::string trace; // CSV: TIMESTAMP,ContextTokens,GeneratedTokens
    size_t trace_row = 0;
    std::string arrivals; // trace, poisson, gamma[:SHAPE]; empty: trace if there is one
    uint64_t seed = 1;
    size_t requests = 300;
    double busy_percent = 50;  // of the time that online works when it is alone
    double phase_seconds = 45; // all requests come within it
    double prompt_scale = 0;   // of prompts alone; 0: as all tokens
    double token_scale = 0; // 0: found, so that phase_seconds has that busy share; else the time is
    bool fresh_connections = false;
    // The engines.
    std::string memory = "16Gi"; // of each for KV and work space
    std::string engine_args, batch_args;
    std::string batch; // a JSONL file; empty: a generated one
    double batch_seconds = 20;
    // Policies.
    double share_percent = 20;
    double slo_factor = 4;
    // The report.
    size_t resamples = 2000;
    double time_limit = 0; // seconds in all; a phase that would exceed it is left out; 0: none
};

} // namespace berth::cli::bench
