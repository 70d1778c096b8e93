// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/buffers.h"

#include "base/round.h"
#include "engine_shim/reference/fast/step_input.h"

#include <algorithm>

namespace berth::engine::fast {

namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint32_t kHeaderWords = 16;
// As measured on an H200.
uint32_t groups_for(uint32_t rows) {
    return rows <= 2 ? 132 : rows <= 16 ? 396 : 1056;
}

class Cutter {
  public:
    explicit Cutter(std::byte* base) : base_(base) {}
    template <typename T>
    void cut(T*& to, uint64_t count) {
        used_ = round_up(used_, kAlignment);
        to = reinterpret_cast<T*>(base_ + used_); // from null: offsets, for the size alone
        used_ += count * sizeof(T);
    }
    uint64_t used() const { return used_; }

  private:
    std::byte* base_;
    uint64_t used_ = 0;
};

uint64_t largest_matrix(const Dimensions& dims) {
    return uint64_t{dims.hidden} * std::max(dims.intermediate, dims.query_width());
}

// Over all numbers of rows: more rows need fewer splits.
uint64_t partial_floats(const Dimensions& dims, const FastLimits& limits,
                        const FastOptions& options) {
    uint64_t most = 0;
    for (uint32_t rows = 1; rows <= limits.sequences; ++rows)
        most = std::max(most, uint64_t{rows} * attend_splits(dims, rows, options.attend_groups));
    return most * dims.heads * (dims.head_dim + kPartialExtra);
}

} // namespace

uint32_t attend_heads(const Dimensions& dims) {
    const uint32_t shared = dims.heads / dims.kv_heads;
    return shared >= 3 ? 4 : shared;
}

uint32_t attend_groups_each(const Dimensions& dims) {
    return (dims.heads / dims.kv_heads + attend_heads(dims) - 1) / attend_heads(dims);
}

uint32_t arrived_count(const Dimensions& dims, uint32_t rows) {
    return rows * dims.kv_heads * attend_groups_each(dims);
}

uint32_t attend_splits(const Dimensions& dims, uint32_t rows, uint32_t groups_wanted) {
    if (groups_wanted == 0)
        groups_wanted = groups_for(rows);
    const uint32_t each = rows * dims.kv_heads * attend_groups_each(dims);
    return std::clamp(groups_wanted / std::max(each, 1U), 1U, kSplitsMax);
}

Buffers lay_out(const Dimensions& dims, const FastLimits& limits, const FastOptions& options,
                std::byte* base) {
    const uint64_t rows = limits.rows();
    Buffers made;
    Cutter cutter(base);
    // Input words lie without gaps: host and device agree on them by this order alone.
    int32_t* input = nullptr;
    made.input_words = kHeaderWords + dims.head_dim / 2 + 3 * rows + limits.sequences +
                       chunk_words(limits) + uint64_t{limits.sequences} * limits.blocks_each;
    cutter.cut(input, made.input_words);
    made.header = reinterpret_cast<StepHeader*>(input);
    made.inverse = reinterpret_cast<float*>(input + kHeaderWords);
    made.tokens = input + kHeaderWords + dims.head_dim / 2;
    made.positions = made.tokens + rows;
    made.sequences = made.positions + rows;
    made.logit_rows = made.sequences + rows;
    made.chunks = made.logit_rows + limits.sequences;
    made.tables = made.chunks + chunk_words(limits);

    cutter.cut(made.rope, rows * dims.head_dim);
    cutter.cut(made.residual, rows * dims.hidden);
    cutter.cut(made.normed, rows * dims.hidden);
    cutter.cut(made.qkv, rows * dims.qkv_width());
    cutter.cut(made.q, rows * dims.query_width());
    cutter.cut(made.mixed, rows * dims.query_width());
    cutter.cut(made.gate_up, rows * 2 * dims.intermediate);
    cutter.cut(made.active, rows * dims.intermediate);
    cutter.cut(made.logits, uint64_t{limits.sequences} * dims.vocab);
    cutter.cut(made.keys, limits.sequences);
    cutter.cut(made.arrived, arrived_count(dims, limits.sequences));
    cutter.cut(made.dequantised, dims.has_fp8 ? largest_matrix(dims) : 0);
    cutter.cut(made.library, kLibraryBytes);
    // Last: the others lie at the same places whatever the options are.
    cutter.cut(made.partial, partial_floats(dims, limits, options));
    made.bytes = round_up(cutter.used(), kAlignment);
    return made;
}

} // namespace berth::engine::fast
