// SPDX-License-Identifier: Apache-2.0
#include "cache/load/chunks.h"

#include "cache/load/convert.h"
#include "cache/weights/checksum.h"

#include <algorithm>
#include <span>

namespace berth {

ChunkedLoad::ChunkedLoad(const Layout& layout, const SourceFiles& files, uint64_t chunk_bytes)
    : layout_(layout), files_(files), chunk_bytes_(chunk_bytes) {
    size_t hash = 0;
    for (size_t index = 0; index < layout.tensors.size(); ++index) {
        const PlacedTensor& tensor = layout.tensors[index];
        first_hash_.push_back(hash);
        for (uint64_t done = 0; done < tensor.bytes; done += chunk_bytes) {
            Chunk chunk;
            chunk.tensor = index;
            chunk.offset = tensor.offset + done;
            chunk.bytes = std::min(chunk_bytes, tensor.bytes - done);
            // A cast changes an element's width; without one both sides are the same bytes.
            uint64_t from_bits = tensor.is_cast() ? bits_of(tensor.stored_dtype) : 1;
            uint64_t to_bits = tensor.is_cast() ? bits_of(tensor.dtype) : 1;
            chunk.stored_offset = tensor.stored_offset + done * from_bits / to_bits;
            chunk.stored_bytes = chunk.bytes * from_bits / to_bits;
            chunk.first_hash = hash + done / kChecksumBlockBytes;
            chunks_.push_back(chunk);
        }
        hash += checksum_blocks(tensor.bytes);
    }
    first_hash_.push_back(hash);
    hashes_.resize(hash);
}

Status ChunkedLoad::fill(const Chunk& chunk, std::byte* to, std::vector<std::byte>& scratch) {
    const PlacedTensor& tensor = layout_.tensors[chunk.tensor];
    std::span<std::byte> target(to, chunk.bytes);
    if (tensor.is_cast()) {
        if (scratch.size() < chunk.stored_bytes)
            scratch.resize(chunk.stored_bytes);
        std::span<std::byte> stored(scratch.data(), chunk.stored_bytes);
        BERTH_TRY(files_.read(tensor.file, chunk.stored_offset, stored));
        BERTH_TRY(convert(tensor.stored_dtype, stored, tensor.dtype, target));
    } else {
        BERTH_TRY(files_.read(tensor.file, chunk.stored_offset, target));
    }
    hash_blocks(target, std::span(hashes_).subspan(chunk.first_hash, checksum_blocks(chunk.bytes)));
    return {};
}

Checksum ChunkedLoad::checksum(size_t tensor) const {
    size_t first = first_hash_[tensor];
    return fold_hashes(std::span(hashes_).subspan(first, first_hash_[tensor + 1] - first));
}

} // namespace berth
