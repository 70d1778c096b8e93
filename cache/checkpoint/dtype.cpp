// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/dtype.h"

#include <array>

namespace berth {

namespace {

struct Row {
    DType dtype;
    std::string_view name;
    uint32_t bits;
};

// In the order of the enumerators: row N describes value N.
constexpr std::array<Row, 18> kRows = {{
    {DType::kOpaque, "opaque", 0},
    {DType::kF64, "F64", 64},
    {DType::kF32, "F32", 32},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF4, "F4", 4},
    {DType::kI64, "I64", 64},
    {DType::kI32, "I32", 32},
    {DType::kI16, "I16", 16},
    {DType::kI8, "I8", 8},
    {DType::kU8, "U8", 8},
    {DType::kBool, "BOOL", 8},
    {DType::kU16, "U16", 16},
    {DType::kU32, "U32", 32},
    {DType::kU64, "U64", 64},
}};

constexpr bool rows_in_order() {
    for (size_t index = 0; index < kRows.size(); ++index)
        if (static_cast<size_t>(kRows[index].dtype) != index)
            return false;
    return true;
}
static_assert(rows_in_order());

} // namespace

std::string_view to_string(DType dtype) {
    auto index = static_cast<size_t>(dtype);
    return index < kRows.size() ? kRows[index].name : kRows[0].name;
}

DType dtype_from(std::string_view name) {
    for (const Row& row : kRows)
        if (row.dtype != DType::kOpaque && row.name == name)
            return row.dtype;
    return DType::kOpaque;
}

uint32_t bits_of(DType dtype) {
    auto index = static_cast<size_t>(dtype);
    return index < kRows.size() ? kRows[index].bits : 0;
}

} // namespace berth
