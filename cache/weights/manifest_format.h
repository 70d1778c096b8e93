// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// How a manifest lies in its memfd: header, segment sizes, entries in ascending order of name, then
// text. Everything is little endian and without padding; positions are bytes from the file's start.
// Entries carry their shape, so that a reader needs no table of its own.
namespace berth::manifest_format {

inline constexpr uint64_t kMagic = 0x31464d4854524542; // "BERTHMF1"
inline constexpr uint32_t kVersion = 1;
inline constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;
inline constexpr uint32_t kSegmentsMax = 4096;
inline constexpr uint32_t kNotAlias = 0xffffffff;

struct TextRange {
    uint64_t at;
    uint64_t bytes;
};

struct Header {
    uint64_t magic;
    uint32_t version;
    uint32_t segment_count;
    uint64_t file_bytes;
    uint64_t entry_count;
    uint64_t segments_at;
    uint64_t entries_at;
    uint64_t weight_bytes;
    TextRange fingerprint_json;
    TextRange fingerprint;
    TextRange config_json;
};
static_assert(sizeof(Header) == 104);

struct Entry {
    uint64_t name_at;
    uint32_t name_bytes;
    uint32_t alias_of; // index of the entry whose bytes these are, or kNotAlias
    uint32_t segment;
    uint8_t dtype;
    uint8_t rank;
    uint16_t reserved;
    uint64_t offset;
    uint64_t bytes;
    uint64_t checksum_low;
    uint64_t checksum_high;
    uint64_t shape[8];
};
static_assert(sizeof(Entry) == 120);

} // namespace berth::manifest_format
