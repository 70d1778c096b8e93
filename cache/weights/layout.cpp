// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/layout.h"

#include "cache/checkpoint/fault.h"

#include <fmt/format.h>

#include <optional>

namespace berth {

namespace {

// The type asked for; nothing for "auto".
Result<std::optional<DType>> wanted_dtype(std::string_view name) {
    if (name == "auto")
        return std::optional<DType>();
    if (name == "float32")
        return std::optional(DType::kF32);
    if (name == "bfloat16")
        return std::optional(DType::kBF16);
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("dtype '{}': expected auto, float32 or bfloat16", name));
}

bool is_castable(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

bool is_whole_number(DType dtype) {
    switch (dtype) {
    case DType::kI64:
    case DType::kI32:
    case DType::kI16:
    case DType::kI8:
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
    case DType::kBool:
        return true;
    default:
        return false;
    }
}

Result<PlacedTensor> place(const Checkpoint& checkpoint, const CheckpointTensor& from,
                           std::optional<DType> wanted) {
    const StoredTensor& stored = from.stored;
    std::string_view file = checkpoint.files[from.file].name;
    if (stored.shape.size() > kTensorRankMax)
        return fail_fault({"TooManyDimensions", file, stored.name,
                           fmt::format("shape {}", shape_text(stored.shape)),
                           fmt::format("at most {} dimensions", kTensorRankMax),
                           "this checkpoint cannot be shared", ErrorCode::kUnsupported});
    PlacedTensor tensor;
    tensor.name = stored.name;
    tensor.shape = stored.shape;
    tensor.file = from.file;
    tensor.stored_dtype = tensor.dtype = stored.dtype;
    tensor.stored_offset = stored.offset;
    tensor.stored_bytes = tensor.bytes = stored.bytes;
    if (!wanted || is_whole_number(stored.dtype) || stored.dtype == *wanted)
        return tensor;
    if (!is_castable(stored.dtype))
        return fail_fault({"CannotCast", file, stored.name, stored.dtype_name,
                           fmt::format("F32, F16 or BF16 to cast to {}", to_string(*wanted)),
                           "load it as stored (dtype auto)", ErrorCode::kUnsupported});
    tensor.dtype = *wanted;
    tensor.bytes = stored.bytes / (bits_of(stored.dtype) / 8) * (bits_of(*wanted) / 8);
    return tensor;
}

} // namespace

Result<Layout> plan_layout(const Checkpoint& checkpoint, std::string_view dtype) {
    BERTH_ASSIGN(std::optional<DType> wanted, wanted_dtype(dtype));
    Layout layout;
    layout.aliases = checkpoint.aliases;
    layout.tensors.reserve(checkpoint.tensors.size());
    for (const CheckpointTensor& from : checkpoint.tensors) {
        BERTH_ASSIGN(PlacedTensor tensor, place(checkpoint, from, wanted));
        tensor.offset = layout.segment_bytes;
        layout.segment_bytes +=
            (tensor.bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
        layout.bytes_to_read += tensor.stored_bytes;
        layout.cast_count += tensor.is_cast() ? 1 : 0;
        layout.tensors.push_back(std::move(tensor));
    }
    if (layout.segment_bytes == 0)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("{}: all tensors are empty; expected a model's weights",
                                checkpoint.folder));
    return layout;
}

} // namespace berth
