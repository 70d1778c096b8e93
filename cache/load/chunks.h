// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/source_files.h"
#include "cache/weights/layout.h"
#include "cache/weights/manifest.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace berth {

// A piece of one tensor that is read, cast and hashed at once. Pieces start at a checksum block's
// start, so that threads may do them in any order.
struct Chunk {
    size_t tensor = 0; // index into the layout's tensors
    uint64_t stored_offset = 0;
    uint64_t stored_bytes = 0;
    uint64_t offset = 0; // in the segment
    uint64_t bytes = 0;
    size_t first_hash = 0; // index into ChunkedLoad's hashes
};

// A layout cut into chunks, with the place for every block's hash. fill() is thread-safe for
// different chunks. The layout and the files outlive it.
class ChunkedLoad {
  public:
    // `chunk_bytes`, in the segment, is a multiple of kChecksumBlockBytes.
    ChunkedLoad(const Layout& layout, const SourceFiles& files, uint64_t chunk_bytes);

    const std::vector<Chunk>& chunks() const { return chunks_; }
    uint64_t bytes_to_read() const { return layout_.bytes_to_read; }
    uint64_t chunk_bytes() const { return chunk_bytes_; }

    // Reads a chunk's final bytes to `to` and hashes them. `scratch` is the calling thread's own;
    // it grows to what a cast needs.
    Status fill(const Chunk& chunk, std::byte* to, std::vector<std::byte>& scratch);
    // When every chunk has been filled.
    Checksum checksum(size_t tensor) const;

  private:
    const Layout& layout_;
    const SourceFiles& files_;
    uint64_t chunk_bytes_;
    std::vector<Chunk> chunks_;
    std::vector<uint64_t> hashes_;
    std::vector<size_t> first_hash_; // by tensor, and one more at the end
};

} // namespace berth
