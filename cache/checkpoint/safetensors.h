// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/dtype.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// The header of a safetensors file: eight bytes with its length, little endian, then one JSON
// object that names each tensor's element type, shape and place. Nothing here reads a tensor's
// bytes.
namespace berth {

inline constexpr uint64_t kHeaderBytesMax = 100'000'000;

struct StoredTensor {
    std::string name;
    DType dtype = DType::kOpaque;
    std::string dtype_name; // as the file says it, also where we do not know it
    std::vector<uint64_t> shape;
    uint64_t offset = 0; // bytes from the file's start
    uint64_t bytes = 0;
};

struct SafetensorsHeader {
    std::vector<StoredTensor> tensors; // in the order of their places
    std::map<std::string, std::string> metadata;
    uint64_t data_offset = 0; // where the first tensor's bytes are
    uint64_t file_bytes = 0;
    int64_t mtime_ns = 0;
    std::string header_hash; // SHA-256 of the JSON
};

struct SafetensorsOptions {
    // Bytes behind the last tensor are a fault unless this says otherwise.
    bool allow_trailing = false;
};

// Opens a file, reads its header and checks it against the file's size. `shown` names the file in
// errors. Blocks on the disk.
Result<SafetensorsHeader> read_safetensors_header(const std::string& path, std::string_view shown,
                                                  const SafetensorsOptions& options = {});

// The same check on a header that is already in memory; data starts behind eight bytes and `json`.
// Refused: unknown or missing fields, a shape that does not fill its bytes, bytes outside the file,
// overlaps, holes, bytes behind the last tensor, a name that is there twice. A dtype that is not
// known is carried as opaque bytes.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t file_bytes,
                                                   std::string_view shown,
                                                   const SafetensorsOptions& options = {});

// "[4, 8]"
std::string shape_text(const std::vector<uint64_t>& shape);

} // namespace berth
