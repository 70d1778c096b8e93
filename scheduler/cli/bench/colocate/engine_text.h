// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "scheduler/cli/bench/colocate/arrivals.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace berth::cli::bench {

// What an engine is asked over HTTP, as text, and what its metrics say.

// `number` makes the prompt's tokens, which are drawn from a seed: each request its own prompt, of
// exactly so many tokens, whatever the tokenizer. Greedy, streamed, to the wanted length.
struct Asked {
    std::string model = "model";
    uint32_t vocabulary = 256;
    uint64_t seed = 1;
    bool keeps_connection = true;
};
std::string completion_request(const Asked& asked, size_t number, const Arrival& shape);
std::string metrics_request();

// From the checkpoint's config.json.
Result<uint32_t> vocabulary_of(const std::string& model_folder);

// The counters of a batch engine at one moment.
struct BatchCounters {
    uint64_t tokens = 0;
    uint64_t prefilled = 0;
    uint64_t gate_pauses = 0;
    uint64_t sequences_preempted = 0;
    uint64_t requests_done = 0;
};
// From the text of its /metrics; nothing if one is missing.
std::optional<BatchCounters> batch_counters(std::string_view metrics);

} // namespace berth::cli::bench
