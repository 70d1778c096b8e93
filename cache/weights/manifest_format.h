// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// How a manifest lies in its memfd: header, segment sizes, entries in ascending order of name, then
// text. Everything is little endian and without padding; positions are bytes from the file's start.
// Entries carry their shape, so that a reader needs no table of its own.
//
// Version 2 adds an Extension right behind the header, for sets that an engine has published:
// extras of entries (in ascending order of entry) and a canary. It is written only where one of
// these is needed; a reader that does not know it refuses it, since without strides it would see
// other tensors than were made.
namespace berth::manifest_format {

inline constexpr uint64_t kMagic = 0x31464d4854524542; // "BERTHMF1"
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kExtendedVersion = 2;
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

struct Extension {
    uint64_t extras_at;
    uint64_t extra_count;
    TextRange canary_input;
    TextRange canary_digest;
};
static_assert(sizeof(Extension) == 48);

inline constexpr uint32_t kFlagState = 1;   // a template of private copies
inline constexpr uint32_t kFlagStrided = 2; // storage_offset and strides hold

// What an entry says beyond its shape. Its offset and bytes are those of its whole storage.
struct Extra {
    uint32_t entry;
    uint32_t flags;
    uint64_t storage_offset; // in elements
    uint64_t strides[8];     // in elements
};
static_assert(sizeof(Extra) == 80);

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
