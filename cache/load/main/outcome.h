// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/load.h"

#include <cstdint>
#include <string>
#include <vector>

namespace berth {

// What a load by hand came to.
struct LoadOutcome {
    struct Rank {
        uint32_t rank = 0;
        std::string fingerprint; // SHA-256
        uint64_t segment_bytes = 0;
        uint64_t tensors = 0;
        std::string id() const { return fingerprint.substr(0, 16); }
    };
    std::vector<Rank> ranks;
    const LoadedSet& first; // whose times are those of the whole load
    bool verified = false;
    std::vector<std::string> different; // tensors whose bytes are not their checksum's
};
std::string outcome_text(const LoadOutcome& outcome);
std::string outcome_json(const LoadOutcome& outcome);

// A line that is written over, where somebody looks.
Status show_progress(uint64_t done, uint64_t total);

} // namespace berth
