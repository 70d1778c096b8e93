// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/checkpoint.h"
#include "cache/weights/manifest.h"
#include "cache/weights/recipe.h"
#include "cache/weights/slicing.h"

#include <cstdint>
#include <string>
#include <vector>

namespace berth {

enum class Transform {
    kCopy,
    kCast,
    kQuantise, // to FP8 by blocks; the scales are the next tensor of the layout
    kScales,   // made by the tensor before it, read from nowhere
};

// One tensor's way from its file into the segment.
struct PlacedTensor {
    std::string name;
    std::vector<uint64_t> shape; // of the slice
    size_t source = 0;           // index into the checkpoint's tensors
    size_t file = 0;             // index into the checkpoint's files
    DType stored_dtype = DType::kOpaque;
    uint64_t stored_bytes = 0; // of the slice
    Slice slice;
    Transform transform = Transform::kCopy;
    DType dtype = DType::kOpaque; // in the segment
    uint64_t offset = 0;          // bytes from the segment's start
    uint64_t bytes = 0;
    bool is_cast() const { return transform == Transform::kCast; }
};

// Where everything of one rank goes: one segment, tensors in the order in which they are read, each
// at a multiple of kTensorAlignment.
struct Layout {
    std::vector<PlacedTensor> tensors;
    std::vector<CheckpointAlias> aliases;
    uint64_t segment_bytes = 0; // before the device's granularity
    uint64_t bytes_to_read = 0;
    uint64_t cast_count = 0;
    uint64_t quantised_count = 0;
};

// The recipe's dtype casts floating-point tensors of 16 and 32 bits; whole numbers, and what is
// quantised by blocks already, stay. Its quantisation turns the matrices of linear layers into FP8.
// Refused by name: elements that cannot be cast or quantised, slices that do not divide, more
// dimensions than a manifest holds, a quantisation that is not one of the two.
Result<Layout> plan_layout(const Checkpoint& checkpoint, const WeightRecipe& recipe);

} // namespace berth
