// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/checkpoint.h"
#include "cache/weights/layout.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// The work of a load, cut into pieces that threads do in any order: each reads one stretch of a
// file once and says where its parts go, on however many ranks.
namespace berth {

// A rectangle of a tile on its way to one rank; rows follow each other in the segment.
struct Placement {
    size_t rank = 0;    // index into the layouts
    uint64_t from = 0;  // bytes into the tile (after its cast)
    uint64_t pitch = 0; // bytes from one row to the next, in the tile
    uint64_t width = 0; // bytes of a row
    uint64_t rows = 0;
    uint64_t to = 0;                        // bytes into the rank's segment
    uint64_t scales_to = 0;                 // of kQuantise: where the first factor goes
    Transform transform = Transform::kCopy; // kCopy or kQuantise: a cast is the tile's
    bool is_contiguous() const { return pitch == width || rows == 1; }
    uint64_t source_bytes() const { return width * rows; }
};

struct Tile {
    size_t source = 0; // index into the checkpoint's tensors
    size_t file = 0;
    uint64_t offset = 0; // in the file
    uint64_t stored_bytes = 0;
    uint64_t bytes = 0; // after the cast
    bool is_cast = false;
    DType stored_dtype = DType::kOpaque;
    DType dtype = DType::kOpaque;
    std::vector<Placement> placements;
};

struct TilePlan {
    std::vector<Tile> tiles; // by file, then place
    uint64_t bytes_to_read = 0;
    uint64_t tile_bytes_max = 0; // stored or cast, whichever is more
    bool has_casts = false;
    bool has_quantisation = false;
};

// `chunk_bytes` is how large a tile should be; one that cannot be cut so small (128 rows of a
// matrix that is quantised, one row of a matrix that is cut by columns) is larger.
TilePlan plan_tiles(const Checkpoint& checkpoint, std::span<const Layout* const> layouts,
                    uint64_t chunk_bytes);

} // namespace berth
