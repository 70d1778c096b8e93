// SPDX-License-Identifier: Apache-2.0
#include "cache/load/tile_reader.h"

#include "base/round.h"
#include "cache/load/convert.h"

#include <cstdlib>
#include <new>

namespace berth {

namespace {

constexpr uint64_t kPageBytes = 4096;

} // namespace

PageBuffer::PageBuffer(uint64_t bytes) : bytes_(round_up(bytes, kPageBytes)) {
    void* data = std::aligned_alloc(kPageBytes, bytes_);
    if (data == nullptr)
        throw std::bad_alloc();
    data_.reset(static_cast<std::byte*>(data));
}

void PageBuffer::Free::operator()(std::byte* data) const {
    std::free(data);
}

TileReader::TileReader(const SourceFiles& files, uint64_t slot_bytes, bool casts) : files_(files) {
    if (casts)
        stored_ = PageBuffer(slot_bytes);
}

Result<std::span<const std::byte>> TileReader::read(const Tile& tile, std::span<std::byte> slot) {
    if (!tile.is_cast) {
        BERTH_ASSIGN(std::span<std::byte> read,
                     files_.read_into(tile.file, tile.offset, tile.stored_bytes, slot));
        return std::span<const std::byte>(read);
    }
    BERTH_ASSIGN(std::span<std::byte> stored,
                 files_.read_into(tile.file, tile.offset, tile.stored_bytes, stored_.bytes()));
    std::span<std::byte> cast = slot.first(tile.bytes);
    BERTH_TRY(convert(tile.stored_dtype, stored, tile.dtype, cast));
    return std::span<const std::byte>(cast);
}

} // namespace berth
