// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/dtype.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

// Block-wise FP8 written down a second time, slowly and from the definition: every code is tried
// for every element, in double precision.
namespace berth::test {

struct Random {
    uint64_t state = 0x9E3779B97F4A7C15U;
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 0x2545F4914F6CDD1DU;
    }
};

// How elements are drawn.
enum class Draw { kAnyBits, kWeights, kTiny, kHuge, kSubnormal, kZeros };
inline constexpr Draw kDraws[] = {Draw::kAnyBits, Draw::kWeights,   Draw::kTiny,
                                  Draw::kHuge,    Draw::kSubnormal, Draw::kZeros};

// The bits of one element: sign, exponent in [low, high], any mantissa.
inline uint32_t draw_bits(Random& random, DType dtype, Draw draw) {
    uint32_t mantissa_bits = dtype == DType::kBF16 ? 7 : dtype == DType::kF16 ? 10 : 23;
    uint32_t exponent_bits = dtype == DType::kF16 ? 5 : 8;
    uint32_t top = (1U << exponent_bits) - 1;
    uint32_t low = 0;
    uint32_t high = top;
    if (draw == Draw::kWeights) {
        low = top / 2 - 8;
        high = top / 2;
    } else if (draw == Draw::kTiny) {
        high = top / 16;
    } else if (draw == Draw::kHuge) {
        low = top - 9;
        high = top - 1;
    } else if (draw == Draw::kSubnormal || draw == Draw::kZeros) {
        high = 0;
    }
    uint64_t drawn = random.next();
    uint32_t sign = static_cast<uint32_t>(drawn >> 63) << (mantissa_bits + exponent_bits);
    uint32_t exponent = low + static_cast<uint32_t>((drawn >> 40 & 0xffffU) % (high - low + 1));
    uint32_t mantissa = draw == Draw::kZeros
                            ? 0
                            : static_cast<uint32_t>(drawn & ((uint64_t{1} << mantissa_bits) - 1));
    return sign | exponent << mantissa_bits | mantissa;
}

struct Matrix {
    DType dtype = DType::kBF16;
    uint64_t rows = 0;
    uint64_t columns = 0;
    uint64_t pitch = 0;
    std::vector<std::byte> bytes;

    uint64_t size() const { return bits_of(dtype) / 8; }
    std::byte* at(uint64_t row, uint64_t column) {
        return bytes.data() + row * pitch + column * size();
    }
    const std::byte* at(uint64_t row, uint64_t column) const {
        return bytes.data() + row * pitch + column * size();
    }
};

inline Matrix draw_matrix(Random& random, DType dtype, uint64_t rows, uint64_t columns, Draw draw,
                          uint64_t gap_elements = 0) {
    Matrix made{dtype, rows, columns, (columns + gap_elements) * bits_of(dtype) / 8, {}};
    made.bytes.assign(rows * made.pitch, std::byte{0xff}); // the gaps hold NaNs
    for (uint64_t row = 0; row < rows; ++row)
        for (uint64_t column = 0; column < columns; ++column) {
            uint32_t bits = draw_bits(random, dtype, draw);
            std::memcpy(made.at(row, column), &bits, made.size());
        }
    return made;
}

inline double value_of(DType dtype, const std::byte* from) {
    uint32_t bits = 0;
    std::memcpy(&bits, from, bits_of(dtype) / 8);
    int mantissa_bits = dtype == DType::kBF16 ? 7 : dtype == DType::kF16 ? 10 : 23;
    int exponent_bits = dtype == DType::kF16 ? 5 : 8;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = bits & ((1U << mantissa_bits) - 1);
    double value = 0;
    if (exponent == (1 << exponent_bits) - 1)
        value = mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value =
            std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
    return bits >> (mantissa_bits + exponent_bits) != 0 ? -value : value;
}

inline double value_of_fp8(uint32_t code) {
    int exponent = static_cast<int>(code >> 3 & 15U);
    double mantissa = code & 7U;
    double value =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return (code & 0x80U) != 0 ? -value : value;
}

inline std::byte nearest_fp8(float value) {
    if (std::isnan(value))
        return std::byte{0x7f};
    double magnitude = std::fabs(static_cast<double>(value));
    uint32_t best = 0x7e;
    if (magnitude < 448) {
        for (uint32_t code = 0; code < 0x7e; ++code) {
            double below = magnitude - value_of_fp8(code);
            double above = value_of_fp8(code + 1) - magnitude;
            if (below < 0 || above < 0)
                continue;
            best = below < above || (below == above && code % 2 == 0) ? code : code + 1;
            break;
        }
    }
    return static_cast<std::byte>(best | (std::signbit(value) ? 0x80U : 0U));
}

struct Quantised {
    std::vector<std::byte> fp8;
    std::vector<float> scales;
    uint64_t non_finite = 0;
};

inline Quantised reference_quantise(const Matrix& from) {
    uint64_t down = (from.rows + 127) / 128;
    uint64_t across = (from.columns + 127) / 128;
    Quantised made;
    made.fp8.resize(from.rows * from.columns);
    std::vector<double> largest(down * across);
    for (uint64_t row = 0; row < from.rows; ++row)
        for (uint64_t column = 0; column < from.columns; ++column) {
            double magnitude = std::fabs(value_of(from.dtype, from.at(row, column)));
            double& block = largest[row / 128 * across + column / 128];
            if (!std::isfinite(magnitude))
                ++made.non_finite;
            else if (magnitude > block)
                block = magnitude;
        }
    std::vector<float> inverses;
    for (double amax : largest) {
        auto clamped = static_cast<float>(amax > 0x1p-117 ? amax : 0x1p-117);
        made.scales.push_back(amax == 0 ? 1.0F : clamped / 448.0F);
        inverses.push_back(amax == 0 ? 1.0F : 448.0F / clamped);
    }
    for (uint64_t row = 0; row < from.rows; ++row)
        for (uint64_t column = 0; column < from.columns; ++column) {
            auto value = static_cast<float>(value_of(from.dtype, from.at(row, column)));
            float product = value * inverses[row / 128 * across + column / 128];
            made.fp8[row * from.columns + column] = nearest_fp8(product);
        }
    return made;
}

} // namespace berth::test
