// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/source_files.h"
#include "cache/load/tiles.h"

#include <cstddef>
#include <memory>
#include <span>

namespace berth {

// Page-aligned memory of one thread.
class PageBuffer {
  public:
    PageBuffer() = default;
    explicit PageBuffer(uint64_t bytes);
    std::span<std::byte> bytes() const { return {data_.get(), bytes_}; }

  private:
    struct Free {
        void operator()(std::byte* data) const;
    };
    std::unique_ptr<std::byte, Free> data_;
    uint64_t bytes_ = 0;
};

// One thread's way of reading tiles. The files outlive it; read() blocks on the disk.
class TileReader {
  public:
    // `slot_bytes` as in StreamShape; `casts`: some tile is cast.
    TileReader(const SourceFiles& files, uint64_t slot_bytes, bool casts);

    // A tile's bytes, cast where it is, somewhere in `slot`.
    Result<std::span<const std::byte>> read(const Tile& tile, std::span<std::byte> slot);

  private:
    const SourceFiles& files_;
    PageBuffer stored_; // of a tile that is cast
};

} // namespace berth
