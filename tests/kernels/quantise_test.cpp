// SPDX-License-Identifier: Apache-2.0
// Goal: the CPU's block-wise FP8 is what quantise.h defines, to the bit, at every width of vector.
// Method: against reference.h, over types, ragged shapes and kinds of numbers; all 16-bit patterns.
#include "cache/weights/quantise.h"

#include "cache/weights/quantise_variants.h"
#include "tests/kernels/reference.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

namespace berth {
namespace {

using test::Draw;
using test::draw_matrix;
using test::Matrix;
using test::Quantised;
using test::Random;
using ::testing::HasSubstr;

constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr std::byte kUntouched{0xa5};

Quantised quantise_with(const QuantiseVariant& variant, const Matrix& from) {
    QuantiseFunction function = from.dtype == DType::kBF16  ? variant.bf16
                                : from.dtype == DType::kF16 ? variant.f16
                                                            : variant.f32;
    Quantised made;
    made.fp8.assign(from.rows * from.columns + 1, kUntouched);
    made.scales.assign(scale_count(from.rows, from.columns) + 1, -1);
    for (uint64_t row = 0; row < from.rows; row += kQuantBlock)
        made.non_finite +=
            function({from.at(row, 0), from.pitch, std::min(kQuantBlock, from.rows - row),
                      from.columns, made.fp8.data() + row * from.columns,
                      made.scales.data() + row / kQuantBlock * quant_blocks(from.columns)});
    EXPECT_EQ(made.fp8.back(), kUntouched);
    EXPECT_EQ(made.scales.back(), -1);
    made.fp8.pop_back();
    made.scales.pop_back();
    return made;
}

Quantised quantise_all(const Matrix& from) {
    Quantised made;
    made.fp8.resize(from.rows * from.columns);
    made.scales.resize(scale_count(from.rows, from.columns));
    auto count = quantise_rows(from.dtype, from.bytes.data(), from.pitch, from.rows, from.columns,
                               made.fp8.data(), made.scales.data());
    EXPECT_TRUE(count) << (count ? "" : count.error().message);
    made.non_finite = count.value_or(0);
    return made;
}

bool same_bits(const std::vector<float>& left, const std::vector<float>& right) {
    return left.size() == right.size() &&
           std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

void expect_same(const Quantised& found, const Quantised& expected, const std::string& what) {
    EXPECT_EQ(found.non_finite, expected.non_finite) << what;
    EXPECT_TRUE(same_bits(found.scales, expected.scales)) << what;
    ASSERT_EQ(found.fp8.size(), expected.fp8.size()) << what;
    auto differ = std::ranges::mismatch(found.fp8, expected.fp8);
    EXPECT_TRUE(differ.in1 == found.fp8.end())
        << what << ": element " << differ.in1 - found.fp8.begin();
}

TEST(Quantise, EveryVariantAgreesWithTheDefinitionOverShapesAndNumbers) {
    constexpr uint64_t kShapes[][3] = {{1, 1, 0},     {1, 127, 1},   {128, 128, 0}, {129, 129, 0},
                                       {200, 300, 5}, {127, 256, 0}, {256, 64, 64}, {3, 1153, 7}};
    Random random;
    for (DType dtype : kTypes)
        for (Draw draw : test::kDraws)
            for (auto [rows, columns, gap] : kShapes) {
                Matrix from = draw_matrix(random, dtype, rows, columns, draw, gap);
                Quantised expected = test::reference_quantise(from);
                for (const QuantiseVariant& variant : quantise_variants())
                    expect_same(quantise_with(variant, from), expected,
                                std::string(variant.name) + " " + std::string(to_string(dtype)) +
                                    " draw " + std::to_string(static_cast<int>(draw)) + " " +
                                    std::to_string(rows) + "x" + std::to_string(columns));
                expect_same(quantise_all(from), expected, "quantise_rows");
            }
}

// Blocks of ascending patterns, those of NaNs and infinities among them.
TEST(Quantise, EveryPatternOfSixteenBitsIsRoundedRight) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
        Matrix from{dtype, 256, 256, 512, std::vector<std::byte>(256 * 512)};
        for (uint32_t pattern = 0; pattern < 65536; ++pattern)
            std::memcpy(from.at(pattern / 256, pattern % 256), &pattern, 2);
        Quantised expected = test::reference_quantise(from);
        EXPECT_EQ(expected.non_finite, dtype == DType::kBF16 ? 256U : 2048U);
        for (const QuantiseVariant& variant : quantise_variants())
            expect_same(quantise_with(variant, from), expected, variant.name);
    }
}

// Halves between two codes go to the even one; a float just beside a half goes to its own side.
TEST(Quantise, RoundsHalvesToEvenAndSaturates) {
    Matrix from{DType::kF32, 1, 128, 512, std::vector<std::byte>(512)};
    auto put = [&](uint64_t column, float value) {
        std::memcpy(from.at(0, column), &value, sizeof value);
    };
    put(0, 448.0F); // scale 1
    put(1, 17.0F);  // between 16 and 18: 16
    put(2, 19.0F);  // between 18 and 20: 20
    put(3, std::nextafter(17.0F, 18.0F));
    put(4, -0x1p-10F);                      // half of the smallest: -0
    put(5, std::nextafter(0x1p-10F, 1.0F)); // just above: the smallest
    put(6, 0x1.8p-9F);                      // one and a half of the smallest: two
    put(7, std::nextafter(0x1p-6F, 0.0F));  // the largest subnormal's neighbour: 2^-6
    put(8, -std::numeric_limits<float>::infinity());
    put(9, std::numeric_limits<float>::quiet_NaN());
    Quantised made = quantise_all(from);
    EXPECT_EQ(made.scales[0], 1.0F);
    EXPECT_EQ(made.non_finite, 2U);
    std::vector<int> codes;
    for (int column = 0; column < 10; ++column)
        codes.push_back(static_cast<int>(made.fp8[static_cast<size_t>(column)]));
    EXPECT_THAT(codes,
                ::testing::ElementsAre(0x7e, 0x58, 0x5a, 0x59, 0x80, 0x01, 0x02, 0x08, 0xfe, 0x7f));
}

TEST(Quantise, ZerosAndVanishingBlocksHaveUsableScales) {
    Random random;
    for (DType dtype : kTypes) {
        Matrix zeros = draw_matrix(random, dtype, 130, 130, Draw::kZeros);
        for (float scale : quantise_all(zeros).scales)
            EXPECT_EQ(scale, 1.0F);
    }
    for (Draw draw : {Draw::kSubnormal, Draw::kTiny, Draw::kHuge})
        for (float scale : quantise_all(draw_matrix(random, DType::kF32, 200, 200, draw)).scales) {
            EXPECT_TRUE(std::isnormal(scale)) << scale;
            EXPECT_TRUE(std::isnormal(1 / scale)) << scale;
        }
}

TEST(Quantise, TheWayBackIsWithinHalfAStepOfEightBits) {
    Random random;
    for (DType dtype : kTypes)
        for (Draw draw : {Draw::kWeights, Draw::kHuge}) {
            Matrix from = draw_matrix(random, dtype, 300, 200, draw);
            Quantised made = quantise_all(from);
            std::vector<float> back(300 * 200);
            ASSERT_TRUE(dequantise_rows(made.fp8.data(), made.scales.data(), 300, 200, DType::kF32,
                                        reinterpret_cast<std::byte*>(back.data()), 800));
            for (uint64_t row = 0; row < 300; ++row)
                for (uint64_t column = 0; column < 200; ++column) {
                    double value = test::value_of(dtype, from.at(row, column));
                    double scale = static_cast<double>(made.scales[row / 128 * 2 + column / 128]);
                    double allowed = std::max(std::fabs(value) / 16, scale * 0x1p-10) * 1.00001;
                    ASSERT_LE(std::fabs(static_cast<double>(back[row * 200 + column]) - value),
                              allowed)
                        << row << ", " << column;
                }
        }
}

TEST(Quantise, TheWayBackToBf16RoundsTheProduct) {
    std::vector<std::byte> fp8(256);
    for (size_t code = 0; code < fp8.size(); ++code)
        fp8[code] = static_cast<std::byte>(code);
    std::vector<float> scales = {0.3F, 1.7e-3F};
    std::vector<std::byte> back(512);
    ASSERT_TRUE(dequantise_rows(fp8.data(), scales.data(), 1, 256, DType::kBF16, back.data(), 512));
    for (uint32_t code = 0; code < 256; ++code) {
        double found = test::value_of(DType::kBF16, back.data() + size_t{code} * 2);
        if ((code & 0x7fU) == 0x7f) {
            EXPECT_TRUE(std::isnan(found));
            continue;
        }
        double exact = test::value_of_fp8(code) * static_cast<double>(scales[code / 128]);
        // Half a step of eight significant bits, and a little for the product's own rounding.
        double half = exact == 0 ? 0 : std::ldexp(1.001, std::ilogb(exact) - 8);
        EXPECT_LE(std::fabs(found - exact), half) << code;
    }
    EXPECT_EQ(
        dequantise_rows(fp8.data(), scales.data(), 1, 1, DType::kI8, back.data(), 1).error().code,
        ErrorCode::kUnsupported);
}

TEST(Quantise, RefusesWhatItCannotDoInWords) {
    std::vector<std::byte> bytes(4096);
    float scale = 0;
    auto refused = [&](DType dtype, uint64_t pitch, uint64_t rows, uint64_t columns) {
        auto done = quantise_rows(dtype, bytes.data(), pitch, rows, columns, bytes.data(), &scale);
        return done ? std::string("not refused") : done.error().message;
    };
    EXPECT_THAT(refused(DType::kI8, 8, 1, 8), HasSubstr("I8"));
    EXPECT_THAT(refused(DType::kBF16, 15, 2, 4), HasSubstr("15 bytes apart"));
    EXPECT_THAT(refused(DType::kBF16, 8, 2, 8), HasSubstr("overlap"));
}

// No time is asked for: the rate is there to be read.
TEST(Quantise, TellsItsRate) {
    Random random;
    constexpr uint64_t kRows = 1024;
    constexpr uint64_t kColumns = 4096;
    for (DType dtype : kTypes) {
        Matrix from = draw_matrix(random, dtype, kRows, kColumns, Draw::kWeights);
        for (const QuantiseVariant& variant : quantise_variants()) {
            double best = 1e9;
            for (int round = 0; round < 3; ++round) {
                auto start = std::chrono::steady_clock::now();
                Quantised made = quantise_with(variant, from);
                std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
                best = std::min(best, passed.count());
                EXPECT_EQ(made.non_finite, 0U);
            }
            std::printf("quantise %-4s %-8s %6.2f GB/s on one thread\n",
                        std::string(to_string(dtype)).c_str(), variant.name,
                        static_cast<double>(from.bytes.size()) / best / 1e9);
        }
    }
}

} // namespace
} // namespace berth
