// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/weights/manifest.h"

#include <cstddef>
#include <cstdint>
#include <span>

// The two levels of a tensor's checksum, apart, so that threads (or a device) can hash a tensor's
// blocks in any order. All calls are pure.
namespace berth {

inline constexpr uint64_t kChecksumBlockBytes = uint64_t{64} << 10;

inline uint64_t checksum_blocks(uint64_t bytes) {
    return (bytes + kChecksumBlockBytes - 1) / kChecksumBlockBytes;
}
// XXH3-64 of one block.
uint64_t hash_block(std::span<const std::byte> block);
// Hashes `bytes` block by block into `hashes`, which has checksum_blocks(bytes.size()) places.
// `bytes` starts at a block's start.
void hash_blocks(std::span<const std::byte> bytes, std::span<uint64_t> hashes);
// XXH3-128 over the list, each hash as eight little-endian bytes.
Checksum fold_hashes(std::span<const uint64_t> hashes);

} // namespace berth
