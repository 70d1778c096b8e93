// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace berth {

// The list is hashed as it lies in memory.
static_assert(std::endian::native == std::endian::little);

uint64_t hash_block(std::span<const std::byte> block) {
    return XXH3_64bits(block.data(), block.size());
}

void hash_blocks(std::span<const std::byte> bytes, std::span<uint64_t> hashes) {
    for (uint64_t block = 0; block < hashes.size(); ++block) {
        uint64_t start = block * kChecksumBlockBytes;
        uint64_t length = std::min<uint64_t>(kChecksumBlockBytes, bytes.size() - start);
        hashes[block] = hash_block(bytes.subspan(start, length));
    }
}

Checksum fold_hashes(std::span<const uint64_t> hashes) {
    XXH128_hash_t folded = XXH3_128bits(hashes.data(), hashes.size_bytes());
    return {folded.low64, folded.high64};
}

Checksum checksum_of(std::span<const std::byte> bytes) {
    std::vector<uint64_t> hashes(checksum_blocks(bytes.size()));
    hash_blocks(bytes, hashes);
    return fold_hashes(hashes);
}

} // namespace berth
