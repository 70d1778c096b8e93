// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/buffers.h"
#include "engine_shim/reference/model/step_model.h"

#include <span>
#include <vector>

namespace berth::engine::fast {

// Prompt pieces that attend in one operation.
struct ChunkGroup {
    uint32_t first_row = 0;
    uint32_t items = 0;
    uint32_t queries = 0, contexts = 0; // in all
    uint32_t queries_max = 0, context_max = 0;
    uint32_t starts_at = 0; // in Buffers::chunks: query starts, context starts, sequences
};

// What is different from step to step in the launches themselves.
struct StepShape {
    uint32_t rows = 0;
    uint32_t singles = 0; // the first rows: single queries, row i of sequence i
    uint32_t logit_rows = 0;
    std::vector<ChunkGroup> chunks;
};

// Words of Buffers::chunks.
uint32_t chunk_words(const FastLimits& limits);

// Writes a step's numbers as the device gets them. Single queries go first, whatever the items'
// order; logits come in the order of the items that sample.
class StepInput {
  public:
    // `host` has room for buffers.input_words.
    StepInput(const Buffers& buffers, const FastLimits& limits, std::vector<float> inverse,
              std::byte* host);

    // `contexts_max`: tokens that one chunk group may gather, unless a single item has more.
    StepShape write(std::span<const StepItem> items, uint32_t contexts_max);
    // The same for single queries alone, filled up to `rows` of them. All rows have logits.
    StepShape write_singles(std::span<const StepItem> items, uint32_t rows);
    // For a graph that looks by itself: begins, or, with `open_word` alone, goes on.
    void set_look(uint32_t open_word, uint32_t next_section);
    const StepHeader& header() const { return *host_of(buffers_.header); }
    // Bytes from the start that must be copied in.
    size_t used_bytes() const { return used_words_ * sizeof(int32_t); }

  private:
    template <typename T>
    T* host_of(T* device) const {
        return reinterpret_cast<T*>(host_ + (reinterpret_cast<std::byte*>(device) -
                                             reinterpret_cast<std::byte*>(buffers_.header)));
    }
    void write_row(uint32_t row, int32_t token, int32_t position, uint32_t sequence);
    void write_tables(std::span<const StepItem* const> sequences);

    const Buffers buffers_;
    const FastLimits limits_;
    std::byte* const host_;
    size_t used_words_ = 0;
};

} // namespace berth::engine::fast
