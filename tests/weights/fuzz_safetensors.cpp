// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors header: refused, or a set of tensors that lie apart and inside the
// file.
#include "cache/checkpoint/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2)
        return 0;
    uint16_t data_bytes = 0;
    std::memcpy(&data_bytes, data, 2);
    std::string_view header(reinterpret_cast<const char*>(data) + 2, size - 2);
    uint64_t file_bytes = 8 + header.size() + data_bytes;
    auto parsed = berth::parse_safetensors_header(header, file_bytes, "fuzz.safetensors");
    if (!parsed)
        return 0;
    uint64_t at = parsed->data_offset;
    for (const berth::StoredTensor& tensor : parsed->tensors) {
        if (tensor.offset != at)
            std::abort();
        at += tensor.bytes;
    }
    if (at != file_bytes)
        std::abort();
    return 0;
}
