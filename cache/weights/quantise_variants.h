// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// The same code for vectors of different width, for quantise.cpp and its test.
namespace berth {

// Up to 128 rows; the members are as the arguments of quantise_rows().
struct QuantiseBand {
    const std::byte* rows;
    uint64_t pitch;
    uint64_t row_count;
    uint64_t columns;
    std::byte* fp8;
    float* scales;
};

using QuantiseFunction = uint64_t (*)(const QuantiseBand&);

struct QuantiseVariant {
    const char* name;
    QuantiseFunction bf16;
    QuantiseFunction f16;
    QuantiseFunction f32;
};

// Those that this machine can run, the fastest first.
std::span<const QuantiseVariant> quantise_variants();

} // namespace berth
