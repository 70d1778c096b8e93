// SPDX-License-Identifier: Apache-2.0
// Goal: casts are the ones IEEE 754 defines. Method: every 16-bit pattern against its definition.
#include "cache/load/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace berth {
namespace {

template <typename To, typename From>
To cast(DType from_dtype, From from, DType to_dtype) {
    To to{};
    Status done = convert(from_dtype, std::as_bytes(std::span(&from, 1)), to_dtype,
                          std::as_writable_bytes(std::span(&to, 1)));
    EXPECT_TRUE(done.has_value());
    return to;
}

double half_by_definition(uint16_t bits) {
    int exponent = bits >> 10 & 0x1f;
    int mantissa = bits & 0x3ff;
    double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 31)
        return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    if (exponent == 0)
        return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Convert, EveryHalfIsTheFloatOfItsDefinition) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
        auto half = static_cast<uint16_t>(bits);
        auto found = cast<float>(DType::kF16, half, DType::kF32);
        double expected = half_by_definition(half);
        if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(found)) << bits;
        } else {
            EXPECT_EQ(found, expected) << bits;
            EXPECT_EQ(std::signbit(found), std::signbit(expected)) << bits;
        }
    }
}

TEST(Convert, EveryBfloatSurvivesTheWayThereAndBack) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
        auto brain = static_cast<uint16_t>(bits);
        auto wide = cast<float>(DType::kBF16, brain, DType::kF32);
        auto back = cast<uint16_t>(DType::kF32, wide, DType::kBF16);
        if (std::isnan(wide))
            EXPECT_TRUE(std::isnan(cast<float>(DType::kBF16, back, DType::kF32))) << bits;
        else
            EXPECT_EQ(back, brain) << bits;
    }
}

TEST(Convert, FloatsRoundToTheNearestBfloatTiesToEven) {
    auto rounded = [](uint32_t bits) {
        return cast<uint16_t>(DType::kF32, std::bit_cast<float>(bits), DType::kBF16);
    };
    EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
    EXPECT_EQ(rounded(0x3f808000), 0x3f80); // a tie, down to even
    EXPECT_EQ(rounded(0x3f808001), 0x3f81);
    EXPECT_EQ(rounded(0x3f818000), 0x3f82);          // a tie, up to even
    EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);          // above the largest: infinity
    EXPECT_EQ(rounded(0x7f800001) & 0x7fff, 0x7fc0); // NaN stays one
    EXPECT_EQ(rounded(0x80000000), 0x8000);
}

TEST(Convert, HalvesGoToBfloatThroughFloat) {
    EXPECT_EQ(cast<uint16_t>(DType::kF16, uint16_t{0x3c00}, DType::kBF16), 0x3f80);
    EXPECT_EQ(cast<uint16_t>(DType::kF16, uint16_t{0xc000}, DType::kBF16), 0xc000);
}

TEST(Convert, OtherTypesAreRefused) {
    std::byte bytes[8] = {};
    Status done = convert(DType::kF8E4M3, {bytes, 4}, DType::kF32, {bytes, 8});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().message, "cannot cast F8_E4M3 to F32");
}

} // namespace
} // namespace berth
