// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace berth::cli::bench {

// What `berth bench cycles` is told.
struct CyclesOptions {
    std::string model;           // a checkpoint's folder
    std::string device = "auto"; // auto: the first GPU; host; or a GPU's UUID
    std::string programs;        // where berthd and the engines lie; empty: beside this program
    std::string memory = "1Gi";  // of each engine for KV and work space: little, so that a Shrink
                                 // finds blocks in use
    std::string engine_args;     // more words for both
    // Without --batch-invariant, which takes the fast path away: one sequence at a time instead, so
    // that the same kernels see the same shapes.
    bool fast = false;
    size_t clients = 4; // that ask online, each now and then
    size_t cycles = 1000;
    uint64_t seed = 1;
    size_t prompts = 32; // of batch; its lines ask them over and over
    uint32_t tokens = 16;
    uint32_t work_ms = 150; // undisturbed work before each, at most
    bool faults = true;
    // Seconds from the start after which no cycle begins; a check of at most 40 s comes then, and
    // what was left out is said; 0: none.
    double time_limit = 0;
    std::string out; // a folder for the logs and the batch answers; empty: nowhere
};

} // namespace berth::cli::bench
