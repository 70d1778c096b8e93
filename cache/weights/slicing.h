// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/checkpoint.h"
#include "cache/weights/parallel.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Which part of each tensor a rank gets, by the tensor's name, as tensor-parallel engines expect it
// (Megatron-LM's column and row parallel layers, arXiv 1909.08053): the first layer of a pair is
// cut by rows of its weight (its outputs), the second by columns (its inputs), embedding and head
// by the vocabulary. Attention is cut between heads; ranks share a key/value head where there are
// fewer heads than ranks. Pure functions.
namespace berth {

struct Range {
    uint64_t begin = 0;
    uint64_t end = 0; // one past the last
    uint64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

// A part of a tensor seen as [rows, columns]: rows are its first dimension, columns all others.
struct Slice {
    std::vector<Range> rows; // several for a fused projection, in the order of its parts
    Range columns;
    uint64_t row_count() const;
    bool operator==(const Slice&) const = default;
};

// Whether quantisation on the way in applies to this tensor: the matrices of linear layers;
// embedding, head, router and norms stay as they are.
bool is_quantisable(std::string_view name, const std::vector<uint64_t>& shape);
// "X.weight_scale_inv": the scales of block-wise quantised "X.weight".
bool is_block_scale(std::string_view name);

// Cuts one checkpoint. `quantises`: its matrices are quantised by blocks on the way in. The
// checkpoint outlives it.
class Slicer {
  public:
    Slicer(const Checkpoint& checkpoint, const Parallelism& parallelism, bool quantises);

    // What of the checkpoint's tensor `index` the rank gets; nothing: it is on other ranks.
    // Refused, with file and tensor: what does not divide (NotDivisible), a cut inside of a
    // quantisation block, a name whose slicing is not known (UnknownSlicing).
    Result<std::optional<Slice>> slice(size_t index, const RankPlace& place) const;

    bool is_last_stage(const RankPlace& place) const {
        return place.stage + 1 == parallelism_.pipeline;
    }

  private:
    friend class Cutter;
    const Checkpoint& checkpoint_;
    Parallelism parallelism_;
    bool quantises_;
    bool has_block_scales_ = false;
    std::map<std::string, uint64_t, std::less<>> experts_; // "model.layers.3.mlp.experts." -> count
};

// The stage that a layer is on: stages hold as many layers as can be equal, the first ones one
// more.
uint32_t stage_of_layer(uint64_t layer, uint64_t layers, uint32_t stages);

} // namespace berth
