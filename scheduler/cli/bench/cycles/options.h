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
    std::string memory = "4Gi";  // of each engine for KV and work space
    std::string engine_args;     // more words for both; --batch-invariant is always among them
    size_t cycles = 1000;
    uint64_t seed = 1;
    size_t prompts = 32; // of batch; its lines ask them over and over
    uint32_t tokens = 16;
    uint32_t work_ms = 150; // undisturbed work before each, at most
    bool faults = true;
    double time_limit = 0; // seconds of cycles; what is left out then is said; 0: none
    std::string out;       // a folder for the logs and the batch answers; empty: nowhere
};

} // namespace berth::cli::bench
