// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace berth {

// The element types of safetensors files. Values are written into manifests: never renumber.
enum class DType : uint8_t {
    kOpaque = 0, // unknown to us: carried as bytes, refused by transforms
    kF64 = 1,
    kF32 = 2,
    kF16 = 3,
    kBF16 = 4,
    kF8E4M3 = 5,
    kF8E5M2 = 6,
    kF8E8M0 = 7,
    kF4 = 8, // two elements a byte; shapes count elements
    kI64 = 9,
    kI32 = 10,
    kI16 = 11,
    kI8 = 12,
    kU8 = 13,
    kBool = 14,
    kU16 = 15,
    kU32 = 16,
    kU64 = 17,
};

// As safetensors names it: "BF16", "F8_E4M3", ...; "opaque".
std::string_view to_string(DType dtype);
// kOpaque for a name we do not know.
DType dtype_from(std::string_view name);
// Bits of one element; 0 for kOpaque.
uint32_t bits_of(DType dtype);

} // namespace berth
