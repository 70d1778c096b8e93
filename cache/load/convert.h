// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "cache/checkpoint/dtype.h"

#include <cstddef>
#include <span>

namespace berth {

// Casts elements between F32, F16 and BF16 on the CPU, rounding to the nearest, ties to even; NaN
// stays NaN. Both spans hold the same number of elements. Unsupported for other types.
Status convert(DType from_dtype, std::span<const std::byte> from, DType to_dtype,
               std::span<std::byte> to);

} // namespace berth
