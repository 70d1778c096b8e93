// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>
#include <string>

namespace berth::engine {

// The command line of berth-engine. Flags go before environment variables, which berthd sets.
struct Options {
    std::string listen;           // HOST:PORT; port 0: any
    bool inherits_socket = false; // berthd passes one on, which goes before `listen`
    bool has_server() const { return inherits_socket || !listen.empty(); }
    std::string batch_input;
    std::string batch_output;
    std::string model;      // checkpoint folder; BERTH_MODEL_PATH
    std::string mode;       // daemon | client | off; BERTH_MODE
    std::string fallback;   // disk | fail; BERTH_FALLBACK; empty: the mode's own
    std::string weight_set; // a published set's id instead of the model's
    std::string device;     // BERTH_DEVICE
    std::string dtype = "auto";
    std::string served_model_name;
    uint32_t max_batch = 16;
    uint32_t prefill_chunk = 512;
    uint32_t block_tokens = 16;
    uint32_t max_context = 0;    // 0: the model's, as far as the grant holds it
    uint64_t kv_memory = 0;      // off mode and guests
    uint64_t host_kv_memory = 0; // for saved KV; 0: a quarter of the machine's memory
    bool batch_invariant = false;
    bool prefix_cache = true;
    std::string compute = "auto"; // fast | plain
    bool graphs = true;
    std::string look = "pieces"; // conditional
    uint32_t threads = 0;        // BERTH_THREADS; 0: the cores
    // One process per rank, each with its part of every layer.
    uint32_t rank = 0;      // BERTH_RANK; 0 has the front end
    uint32_t ranks = 1;     // BERTH_RANKS
    std::string rendezvous; // BERTH_RENDEZVOUS; where the ranks of one start meet
};

// nullopt with `exit_code` set when there is nothing more to do (--help, a wrong flag: already
// said).
std::optional<Options> parse_options(int argc, char** argv, int& exit_code);

} // namespace berth::engine
