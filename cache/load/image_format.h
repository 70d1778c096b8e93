// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/round.h"

#include <cstddef>
#include <cstdint>

// How a weight set lies in an image: header and table of segments, the manifest, the segments'
// bytes as they lie on the device. Each begins at a multiple of kAlignment, in this order; what is
// between is zeros, and the file ends with the last segment. Little endian, without padding.
namespace berth::image_format {

inline constexpr uint64_t kMagic = 0x31474d4948545242; // "BRTHIMG1"
inline constexpr uint32_t kVersion = 1;
inline constexpr uint64_t kAlignment = 4096;

struct Header {
    uint64_t magic;
    uint32_t version;
    uint32_t segment_count;
    uint64_t header_bytes;        // with the table, up to the manifest
    uint64_t header_checksum_low; // over header_bytes, with these two 0
    uint64_t header_checksum_high;
    uint64_t file_bytes;
    uint64_t manifest_at;
    uint64_t manifest_bytes;
    uint64_t manifest_checksum_low;
    uint64_t manifest_checksum_high;
    char fingerprint[64]; // SHA-256, digits
    // What the set was made for; texts end with a 0, empty where the set does not say.
    char layout[32];
    char device_kind[16];
    char compute_capability[16];
};
static_assert(sizeof(Header) == 208);

// Behind the header, one for each segment.
struct SegmentPlace {
    uint64_t at;
    uint64_t bytes;
};
static_assert(sizeof(SegmentPlace) == 16);

inline uint64_t header_bytes_for(uint64_t segment_count) {
    return round_up(sizeof(Header) + segment_count * sizeof(SegmentPlace), kAlignment);
}

} // namespace berth::image_format
