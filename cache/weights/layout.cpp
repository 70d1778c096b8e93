// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/layout.h"

#include "base/round.h"
#include "cache/checkpoint/fault.h"
#include "cache/checkpoint/quantisation.h"

#include <fmt/format.h>

#include <algorithm>
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

// Slices a checkpoint's tensors for one rank and puts them one behind the other.
class Planner {
  public:
    Planner(const Checkpoint& checkpoint, const WeightRecipe& recipe, const RankPlace& place,
            std::optional<DType> wanted)
        : checkpoint_(checkpoint), place_(place), wanted_(wanted),
          quantises_(recipe.quantisation == kBlockFp8),
          slicer_(checkpoint, recipe.parallelism, quantises_) {}

    Result<Layout> plan() {
        layout_.tensors.reserve(checkpoint_.tensors.size());
        for (size_t index = 0; index < checkpoint_.tensors.size(); ++index)
            BERTH_TRY(add(index));
        for (const CheckpointAlias& alias : checkpoint_.aliases)
            if (is_head_here(alias))
                layout_.aliases.push_back(alias);
        if (layout_.segment_bytes == 0)
            return fail(ErrorCode::kCorrupt,
                        fmt::format("{}: all tensors are empty; expected a model's weights",
                                    checkpoint_.folder));
        return std::move(layout_);
    }

  private:
    Status add(size_t index) {
        BERTH_ASSIGN(std::optional<Slice> slice, slicer_.slice(index, place_));
        if (!slice)
            return {};
        const CheckpointTensor& from = checkpoint_.tensors[index];
        PlacedTensor tensor;
        tensor.name = from.stored.name;
        tensor.shape = from.stored.shape;
        tensor.source = index;
        tensor.file = from.file;
        tensor.stored_dtype = tensor.dtype = from.stored.dtype;
        tensor.slice = std::move(*slice);
        BERTH_TRY(measure(tensor, from));
        BERTH_TRY(transform(tensor, from.stored));
        std::optional<PlacedTensor> scales;
        if (tensor.transform == Transform::kQuantise)
            scales = scales_of(tensor);
        put(std::move(tensor));
        if (scales)
            put(std::move(*scales));
        return {};
    }

    // Shape and bytes of the slice.
    Status measure(PlacedTensor& tensor, const CheckpointTensor& from) const {
        const StoredTensor& stored = from.stored;
        if (stored.shape.size() > kTensorRankMax)
            return refuse(from, "TooManyDimensions",
                          fmt::format("shape {}", shape_text(stored.shape)),
                          fmt::format("at most {} dimensions", kTensorRankMax),
                          "this checkpoint cannot be shared");
        uint64_t rows = tensor.slice.row_count(), columns = tensor.slice.columns.size();
        uint64_t all = stored.shape.empty() ? 1 : stored.shape[0];
        bool is_whole_width = true;
        if (!stored.shape.empty())
            tensor.shape[0] = rows;
        if (stored.shape.size() == 2) {
            is_whole_width = columns == stored.shape[1];
            tensor.shape[1] = columns;
        }
        tensor.bytes = stored.bytes;
        if (rows != all || !is_whole_width) {
            uint64_t bits = bits_of(stored.dtype);
            if (bits % 8 != 0 || bits == 0)
                return refuse(from, "CannotSlice", stored.dtype_name,
                              "elements of whole bytes whose width is known",
                              "load this model with one tensor-parallel rank");
            tensor.bytes = rows * columns * (bits / 8);
        }
        tensor.stored_bytes = tensor.bytes;
        return {};
    }

    Status transform(PlacedTensor& tensor, const StoredTensor& stored) const {
        const CheckpointTensor& from = checkpoint_.tensors[tensor.source];
        bool is_block_quantised = checkpoint_.config.quantisation_method == "fp8" &&
                                  (stored.dtype == DType::kF8E4M3 || is_block_scale(stored.name));
        if (is_whole_number(stored.dtype) || is_block_quantised)
            return {};
        if (quantises_ && is_quantisable(stored.name, stored.shape)) {
            if (!is_castable(stored.dtype))
                return refuse(from, "CannotQuantise", stored.dtype_name,
                              "F32, F16 or BF16 to quantise",
                              "load it as stored (quantization none)");
            tensor.transform = Transform::kQuantise;
            tensor.dtype = DType::kF8E4M3;
            tensor.bytes = tensor.shape[0] * tensor.shape[1];
            return {};
        }
        if (!wanted_ || stored.dtype == *wanted_)
            return {};
        if (!is_castable(stored.dtype))
            return refuse(from, "CannotCast", stored.dtype_name,
                          fmt::format("F32, F16 or BF16 to cast to {}", to_string(*wanted_)),
                          "load it as stored (dtype auto)");
        tensor.transform = Transform::kCast;
        tensor.dtype = *wanted_;
        tensor.bytes = tensor.bytes / (bits_of(stored.dtype) / 8) * (bits_of(*wanted_) / 8);
        return {};
    }

    static PlacedTensor scales_of(const PlacedTensor& weight) {
        PlacedTensor scales;
        scales.name = weight.name + std::string(kScaleSuffix);
        scales.shape = BlockQuantisation().scale_shape(weight.shape[0], weight.shape[1]);
        scales.source = weight.source;
        scales.file = weight.file;
        scales.transform = Transform::kScales;
        scales.stored_dtype = scales.dtype = DType::kF32;
        scales.bytes = scales.shape[0] * scales.shape[1] * sizeof(float);
        return scales;
    }

    void put(PlacedTensor tensor) {
        tensor.offset = layout_.segment_bytes;
        layout_.segment_bytes += round_up(tensor.bytes, kTensorAlignment);
        layout_.bytes_to_read += tensor.stored_bytes;
        layout_.cast_count += tensor.transform == Transform::kCast ? 1 : 0;
        layout_.quantised_count += tensor.transform == Transform::kQuantise ? 1 : 0;
        layout_.tensors.push_back(std::move(tensor));
    }

    // An embedding that two stages hold is the head on the last of them only.
    bool is_head_here(const CheckpointAlias& alias) const {
        bool is_placed = std::any_of(layout_.tensors.begin(), layout_.tensors.end(),
                                     [&](const auto& one) { return one.name == alias.of; });
        return is_placed && slicer_.is_last_stage(place_);
    }

    tl::unexpected<Error> refuse(const CheckpointTensor& from, std::string_view reason,
                                 std::string_view found, std::string_view expected,
                                 std::string_view remedy) const {
        return fail_fault({reason, checkpoint_.files[from.file].name, from.stored.name, found,
                           expected, remedy, ErrorCode::kUnsupported});
    }

    const Checkpoint& checkpoint_;
    RankPlace place_;
    std::optional<DType> wanted_;
    bool quantises_;
    Slicer slicer_;
    Layout layout_;
};

} // namespace

Result<Layout> plan_layout(const Checkpoint& checkpoint, const WeightRecipe& recipe) {
    BERTH_ASSIGN(std::optional<DType> wanted, wanted_dtype(recipe.dtype));
    BERTH_ASSIGN(RankPlace place, place_of(recipe.parallelism, recipe.rank));
    if (recipe.quantisation != kNoQuantisation && recipe.quantisation != kBlockFp8)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("quantisation '{}': expected {} or {}", recipe.quantisation,
                                kNoQuantisation, kBlockFp8),
                    "UnknownQuantisation");
    return Planner(checkpoint, recipe, place, wanted).plan();
}

} // namespace berth
