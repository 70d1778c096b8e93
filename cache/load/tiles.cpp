// SPDX-License-Identifier: Apache-2.0
#include "cache/load/tiles.h"

#include "cache/checkpoint/quantisation.h"

#include <algorithm>

namespace berth {

namespace {

// What one stored tensor is wanted for.
struct Wanted {
    size_t rank = 0;
    const PlacedTensor* tensor = nullptr;
    const PlacedTensor* scales = nullptr; // of a tensor that is quantised
};

// One stored tensor seen as rows of `stored_row` bytes, of which each is `row` bytes after the
// cast.
class Grid {
  public:
    Grid(const StoredTensor& stored, const std::vector<Wanted>& wanted)
        : stored_(stored), wanted_(wanted) {
        bool needs_rows = false;
        for (const Wanted& one : wanted) {
            const PlacedTensor& tensor = *one.tensor;
            quantises_ = quantises_ || tensor.transform == Transform::kQuantise;
            is_cast_ = is_cast_ || tensor.is_cast();
            if (tensor.is_cast())
                dtype_ = tensor.dtype;
            needs_rows = needs_rows || tensor.slice.columns.size() != all_columns();
        }
        needs_rows = needs_rows || quantises_;
        element_ = is_cast_ ? bits_of(dtype_) / 8 : bits_of(stored.dtype) / 8;
        stored_element_ = bits_of(stored.dtype) / 8;
        if (needs_rows) {
            row_count_ = stored.shape[0];
            stored_row_ = all_columns() * stored_element_;
            row_ = all_columns() * element_;
            return;
        }
        // Nobody takes less than whole rows: any stretch of elements, or of bytes, will do.
        is_flat_ = true;
        stored_row_ = is_cast_ ? stored_element_ : 1;
        row_ = is_cast_ ? element_ : 1;
        row_count_ = stored.bytes / stored_row_;
    }

    void cut(const CheckpointTensor& from, size_t source, uint64_t chunk_bytes,
             TilePlan& plan) const {
        uint64_t widest = std::max(stored_row_, row_);
        if (widest == 0 || row_count_ == 0)
            return;
        uint64_t unit = quantises_ ? kQuantBlock : 1;
        uint64_t rows_per_tile = std::max(unit, chunk_bytes / widest / unit * unit);
        for (const Range& range : wanted_rows())
            for (uint64_t begin = range.begin; begin < range.end; begin += rows_per_tile)
                add({begin, std::min(begin + rows_per_tile, range.end)}, from, source, plan);
        plan.has_casts = plan.has_casts || is_cast_;
        plan.has_quantisation = plan.has_quantisation || quantises_;
    }

  private:
    // What somebody wants, in order; what nobody wants is not read.
    std::vector<Range> wanted_rows() const {
        std::vector<Range> all;
        for (const Wanted& one : wanted_)
            for (const Range& part : one.tensor->slice.rows)
                all.push_back(in_grid(part));
        std::sort(all.begin(), all.end(),
                  [](const Range& a, const Range& b) { return a.begin < b.begin; });
        std::vector<Range> merged;
        for (const Range& range : all)
            if (!merged.empty() && range.begin <= merged.back().end)
                merged.back().end = std::max(merged.back().end, range.end);
            else
                merged.push_back(range);
        return merged;
    }

    void add(Range band, const CheckpointTensor& from, size_t source, TilePlan& plan) const {
        Tile tile;
        tile.source = source;
        tile.file = from.file;
        tile.offset = stored_.offset + band.begin * stored_row_;
        tile.stored_bytes = band.size() * stored_row_;
        tile.bytes = band.size() * row_;
        tile.is_cast = is_cast_;
        tile.stored_dtype = stored_.dtype;
        tile.dtype = is_cast_ ? dtype_ : stored_.dtype;
        for (const Wanted& one : wanted_)
            place(one, band, tile);
        plan.bytes_to_read += tile.stored_bytes;
        plan.tile_bytes_max = std::max({plan.tile_bytes_max, tile.stored_bytes, tile.bytes});
        plan.tiles.push_back(std::move(tile));
    }

    uint64_t all_columns() const {
        uint64_t columns = 1;
        for (size_t dimension = 1; dimension < stored_.shape.size(); ++dimension)
            columns *= stored_.shape[dimension];
        return columns;
    }

    // A range of the tensor's rows, in rows of the grid.
    Range in_grid(Range rows) const {
        if (!is_flat_)
            return rows;
        uint64_t all = stored_.shape.empty() ? 1 : stored_.shape[0];
        uint64_t per_row = all > 0 ? row_count_ / all : 0;
        // A tensor whose rows are no whole bytes is taken as it is.
        return rows.size() == all ? Range{0, row_count_}
                                  : Range{rows.begin * per_row, rows.end * per_row};
    }

    void place(const Wanted& one, Range band, Tile& tile) const {
        const PlacedTensor& tensor = *one.tensor;
        bool quantises = tensor.transform == Transform::kQuantise;
        uint64_t first = 0, width = row_;
        if (!is_flat_) {
            first = tensor.slice.columns.begin * element_;
            width = tensor.slice.columns.size() * element_;
        }
        uint64_t out_width = quantises ? tensor.slice.columns.size() : width;
        uint64_t done = 0; // rows of the slice before this range
        for (const Range& part : tensor.slice.rows) {
            Range range = in_grid(part);
            uint64_t begin = std::max(range.begin, band.begin);
            uint64_t end = std::min(range.end, band.end);
            if (begin < end && width > 0) {
                uint64_t row = done + begin - range.begin;
                Placement placement;
                placement.rank = one.rank;
                placement.from = (begin - band.begin) * row_ + first;
                placement.pitch = row_;
                placement.width = width;
                placement.rows = end - begin;
                placement.to = tensor.offset + row * out_width;
                if (is_flat_) { // one long row
                    placement.width = placement.pitch = (end - begin) * row_;
                    placement.rows = 1;
                }
                if (quantises) {
                    placement.transform = Transform::kQuantise;
                    placement.scales_to = one.scales->offset +
                                          row / kQuantBlock * one.scales->shape[1] * sizeof(float);
                }
                tile.placements.push_back(placement);
            }
            done += range.size();
        }
    }

    const StoredTensor& stored_;
    const std::vector<Wanted>& wanted_;
    bool quantises_ = false;
    bool is_cast_ = false;
    bool is_flat_ = false;
    DType dtype_ = DType::kOpaque;
    uint64_t element_ = 0; // bytes, after the cast
    uint64_t stored_element_ = 0;
    uint64_t stored_row_ = 0;
    uint64_t row_ = 0;
    uint64_t row_count_ = 0;
};

} // namespace

TilePlan plan_tiles(const Checkpoint& checkpoint, std::span<const Layout* const> layouts,
                    uint64_t chunk_bytes) {
    std::vector<std::vector<Wanted>> wanted(checkpoint.tensors.size());
    for (size_t rank = 0; rank < layouts.size(); ++rank)
        for (size_t index = 0; index < layouts[rank]->tensors.size(); ++index) {
            const std::vector<PlacedTensor>& tensors = layouts[rank]->tensors;
            const PlacedTensor* tensor = &tensors[index];
            bool quantises = tensor->transform == Transform::kQuantise;
            if (tensor->transform != Transform::kScales)
                wanted[tensor->source].push_back(
                    {rank, tensor, quantises ? &tensors[index + 1] : nullptr});
        }
    TilePlan plan;
    for (size_t source = 0; source < wanted.size(); ++source)
        if (!wanted[source].empty())
            Grid(checkpoint.tensors[source].stored, wanted[source])
                .cut(checkpoint.tensors[source], source, chunk_bytes, plan);
    return plan;
}

} // namespace berth
