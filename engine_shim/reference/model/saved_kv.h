// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <vector>

namespace berth::engine {

// A sequence that is to lose its blocks: saved and brought back, or computed again?
struct SaveCase {
    uint64_t bytes = 0;
    uint64_t fresh_bytes = 0;         // of host memory that must be had first
    uint32_t tokens = 0;              // to be computed again
    double prefill_tokens_per_ms = 0; // 0: not known
};
// Milliseconds that saving takes: at 40 GB/s into pinned memory that is at hand, and 1.5 GB/s for
// pinning more (measured on an H200).
double save_ms(const SaveCase& one);
// It takes no longer than `ms_left`, and no longer there and back than computing again.
bool is_worth_saving(const SaveCase& one, double ms_left);

// What the blocks of one sequence held, kept in another place. Destruction forgets it. Engine
// thread only.
class SavedKv {
  public:
    SavedKv() = default;
    SavedKv(const SavedKv&) = delete;
    SavedKv& operator=(const SavedKv&) = delete;
    virtual ~SavedKv() = default;
    // Fills the first of these blocks, as many as were saved; waits until it is done.
    virtual Status bring_back(const std::vector<uint32_t>& blocks) const = 0;
};

} // namespace berth::engine
