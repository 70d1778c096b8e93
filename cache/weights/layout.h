// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/checkpoint.h"
#include "cache/weights/manifest.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// One tensor's way from its file into the segment.
struct PlacedTensor {
    std::string name;
    std::vector<uint64_t> shape;
    size_t file = 0; // index into the checkpoint's files
    DType stored_dtype = DType::kOpaque;
    uint64_t stored_offset = 0; // bytes from the file's start
    uint64_t stored_bytes = 0;
    DType dtype = DType::kOpaque; // in the segment
    uint64_t offset = 0;          // bytes from the segment's start
    uint64_t bytes = 0;
    bool is_cast() const { return dtype != stored_dtype; }
};

// Where everything goes: one segment, tensors in the order in which they are read, each at a
// multiple of kTensorAlignment.
struct Layout {
    std::vector<PlacedTensor> tensors;
    std::vector<CheckpointAlias> aliases;
    uint64_t segment_bytes = 0; // before the device's granularity
    uint64_t bytes_to_read = 0;
    uint64_t cast_count = 0;
};

// `dtype` is "auto" (as stored), "float32" or "bfloat16": floating-point tensors of 16 and 32 bits
// are cast, whole numbers stay. Refused by name: elements that cannot be cast when a cast is asked
// for, more dimensions than a manifest holds.
Result<Layout> plan_layout(const Checkpoint& checkpoint, std::string_view dtype);

} // namespace berth
