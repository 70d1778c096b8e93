// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/quantise.h"

#include "cache/weights/fp8.h"
#include "cache/weights/quantise_variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

// The loops over one row's elements are written so that the compiler makes vectors of them, and
// compiled once for each width of vector; the machine's best is chosen at run time. This file is
// built without contraction of a product and a sum into one rounding.
namespace berth {

namespace {

#define BERTH_INLINE [[gnu::always_inline]] inline

constexpr float kSmallestAmax = 0x1p-117F;
// Columns that are searched and then rounded, so that their 128 rows stay in the second cache.
constexpr uint64_t kStripColumns = 1024;
constexpr uint64_t kStripBlocks = kStripColumns / kQuantBlock;

struct Bf16 {
    using Word = uint16_t;
    static constexpr Word kMagnitude = 0x7fff;
    static constexpr Word kInfinity = 0x7f80;
    BERTH_INLINE static float value(Word bits) {
        return std::bit_cast<float>(uint32_t{bits} << 16);
    }
};

struct F16 {
    using Word = uint16_t;
    static constexpr Word kMagnitude = 0x7fff;
    static constexpr Word kInfinity = 0x7c00;
    BERTH_INLINE static float value(Word bits) {
        uint32_t wide = bits;
        // Shifted into place the exponent is 112 too small; the product puts that right for
        // subnormals as well, and is exact.
        float finite = std::bit_cast<float>((wide & 0x7fffU) << 13) * 0x1p112F;
        uint32_t magnitude = std::bit_cast<uint32_t>(finite);
        magnitude |= (wide & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0U;
        return std::bit_cast<float>(magnitude | (wide & 0x8000U) << 16);
    }
};

struct F32 {
    using Word = uint32_t;
    static constexpr Word kMagnitude = 0x7fffffff;
    static constexpr Word kInfinity = 0x7f800000;
    BERTH_INLINE static float value(Word bits) { return std::bit_cast<float>(bits); }
};

template <typename Word>
BERTH_INLINE Word load(const std::byte* from, uint64_t index) {
    Word word;
    std::memcpy(&word, from + index * sizeof(Word), sizeof word);
    return word;
}

// Magnitudes grow with their bits, so that the largest is found without floating point; NaN and
// infinity come out largest.
template <typename Element>
BERTH_INLINE typename Element::Word largest_of(const std::byte* from, uint64_t count,
                                               typename Element::Word largest) {
    using Word = typename Element::Word;
    for (uint64_t index = 0; index < count; ++index) {
        Word magnitude = load<Word>(from, index) & Element::kMagnitude;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// e4m3 of a number that is no NaN, to nearest even, saturating.
BERTH_INLINE uint8_t round_to_fp8(float value) {
    uint32_t sign = std::bit_cast<uint32_t>(value) >> 24 & 0x80U;
    float magnitude = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7fffffffU);
    magnitude = magnitude < kFp8Max ? magnitude : kFp8Max;
    uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    // Normal: drop 20 bits of the mantissa, the exponent's bias goes from 127 to 7.
    uint32_t normal = ((bits + 0x7ffffU + (bits >> 20 & 1U)) >> 20) - (120U << 3);
    // Subnormal: at 2^14 a float's last bit is worth 2^-9, the step that is wanted.
    float shifted = magnitude + 0x1p14F;
    uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14F);
    uint32_t code = magnitude < 0x1p-6F ? subnormal : normal;
    return static_cast<uint8_t>(code | sign);
}

template <typename Element>
BERTH_INLINE void round_run(const std::byte* __restrict from, uint64_t count, float inverse,
                            std::byte* __restrict to) {
    for (uint64_t index = 0; index < count; ++index) {
        float value = Element::value(load<typename Element::Word>(from, index)) * inverse;
        to[index] = static_cast<std::byte>(round_to_fp8(value));
    }
}

using Band = QuantiseBand;

// A block that holds NaN or infinity, one element at a time: the largest finite magnitude, and how
// many elements are not finite.
template <typename Element>
typename Element::Word largest_finite(const Band& band, uint64_t column, uint64_t count,
                                      uint64_t& non_finite) {
    using Word = typename Element::Word;
    Word largest = 0;
    for (uint64_t row = 0; row < band.row_count; ++row) {
        const std::byte* from = band.rows + row * band.pitch;
        for (uint64_t index = column; index < column + count; ++index) {
            Word magnitude = load<Word>(from, index) & Element::kMagnitude;
            if (magnitude >= Element::kInfinity)
                ++non_finite;
            else
                largest = std::max(largest, magnitude);
        }
    }
    return largest;
}

template <typename Element>
void write_nans(const Band& band, uint64_t column, uint64_t count) {
    using Word = typename Element::Word;
    for (uint64_t row = 0; row < band.row_count; ++row) {
        const std::byte* from = band.rows + row * band.pitch;
        for (uint64_t index = column; index < column + count; ++index)
            if ((load<Word>(from, index) & Element::kMagnitude) > Element::kInfinity)
                band.fp8[row * band.columns + index] = std::byte{kFp8Nan};
    }
}

struct Scale {
    float scale = 1;
    float inverse = 1;
};

template <typename Element>
BERTH_INLINE Scale scale_of(typename Element::Word largest) {
    if (largest == 0)
        return {};
    float amax = std::max(Element::value(largest), kSmallestAmax);
    return {amax / kFp8Max, kFp8Max / amax};
}

// One strip of a band: search all of its rows, then round all of them.
template <typename Element>
BERTH_INLINE uint64_t quantise_strip(const Band& band, uint64_t first_column, uint64_t columns) {
    using Word = typename Element::Word;
    std::array<Word, kStripBlocks> largest{};
    std::array<Scale, kStripBlocks> scales{};
    std::array<bool, kStripBlocks> odd{};
    uint64_t non_finite = 0;
    uint64_t blocks = quant_blocks(columns);
    for (uint64_t row = 0; row < band.row_count; ++row) {
        const std::byte* from = band.rows + row * band.pitch + first_column * sizeof(Word);
        for (uint64_t block = 0; block < blocks; ++block) {
            uint64_t count = std::min(kQuantBlock, columns - block * kQuantBlock);
            const std::byte* run = from + block * kQuantBlock * sizeof(Word);
            // A count known to the compiler makes the loop straight code.
            largest[block] = count == kQuantBlock
                                 ? largest_of<Element>(run, kQuantBlock, largest[block])
                                 : largest_of<Element>(run, count, largest[block]);
        }
    }
    for (uint64_t block = 0; block < blocks; ++block) {
        odd[block] = largest[block] >= Element::kInfinity;
        if (odd[block])
            largest[block] = largest_finite<Element>(
                band, first_column + block * kQuantBlock,
                std::min(kQuantBlock, columns - block * kQuantBlock), non_finite);
        scales[block] = scale_of<Element>(largest[block]);
        band.scales[first_column / kQuantBlock + block] = scales[block].scale;
    }
    for (uint64_t row = 0; row < band.row_count; ++row) {
        const std::byte* from = band.rows + row * band.pitch + first_column * sizeof(Word);
        std::byte* to = band.fp8 + row * band.columns + first_column;
        for (uint64_t block = 0; block < blocks; ++block) {
            uint64_t start = block * kQuantBlock;
            uint64_t count = std::min(kQuantBlock, columns - start);
            const std::byte* run = from + start * sizeof(Word);
            float inverse = scales[block].inverse;
            if (count == kQuantBlock)
                round_run<Element>(run, kQuantBlock, inverse, to + start);
            else
                round_run<Element>(run, count, inverse, to + start);
        }
    }
    for (uint64_t block = 0; block < blocks; ++block)
        if (odd[block])
            write_nans<Element>(band, first_column + block * kQuantBlock,
                                std::min(kQuantBlock, columns - block * kQuantBlock));
    return non_finite;
}

template <typename Element>
BERTH_INLINE uint64_t quantise_band(const Band& band) {
    uint64_t non_finite = 0;
    for (uint64_t column = 0; column < band.columns; column += kStripColumns)
        non_finite +=
            quantise_strip<Element>(band, column, std::min(kStripColumns, band.columns - column));
    return non_finite;
}

template <typename Element>
uint64_t portable(const Band& band) {
    return quantise_band<Element>(band);
}

#if defined(__x86_64__)
#define BERTH_AVX2 [[gnu::target("avx2")]]
#define BERTH_AVX512 [[gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl")]]

template <typename Element>
BERTH_AVX2 uint64_t with_avx2(const Band& band) {
    return quantise_band<Element>(band);
}
template <typename Element>
BERTH_AVX512 uint64_t with_avx512(const Band& band) {
    return quantise_band<Element>(band);
}
#endif

std::vector<QuantiseVariant> find_variants() {
    std::vector<QuantiseVariant> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        found.push_back({"avx512", with_avx512<Bf16>, with_avx512<F16>, with_avx512<F32>});
    if (__builtin_cpu_supports("avx2"))
        found.push_back({"avx2", with_avx2<Bf16>, with_avx2<F16>, with_avx2<F32>});
#endif
    found.push_back({"portable", portable<Bf16>, portable<F16>, portable<F32>});
    return found;
}

} // namespace

bool can_quantise(DType from) {
    return from == DType::kBF16 || from == DType::kF16 || from == DType::kF32;
}

std::span<const QuantiseVariant> quantise_variants() {
    static const std::vector<QuantiseVariant> found = find_variants();
    return found;
}

const char* quantise_variant() {
    return quantise_variants().front().name;
}

Status check_quantise(DType from, const std::byte* rows, uint64_t pitch_bytes, uint64_t row_count,
                      uint64_t columns) {
    if (!can_quantise(from))
        return fail(ErrorCode::kUnsupported,
                    fmt::format("cannot quantise {} to block-wise FP8: expected BF16, F16 or F32",
                                to_string(from)));
    uint64_t size = bits_of(from) / 8;
    if (pitch_bytes % size != 0 || reinterpret_cast<uintptr_t>(rows) % size != 0)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("rows of {} that lie {} bytes apart are not at multiples of an "
                                "element's {} bytes",
                                to_string(from), pitch_bytes, size));
    if (row_count > 1 && pitch_bytes / size < columns)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("rows of {} elements of {} overlap: they lie {} bytes apart",
                                columns, to_string(from), pitch_bytes));
    return {};
}

Result<uint64_t> quantise_rows(DType from, const std::byte* rows, uint64_t pitch_bytes,
                               uint64_t row_count, uint64_t columns, std::byte* fp8_out,
                               float* scales_out) {
    BERTH_TRY(check_quantise(from, rows, pitch_bytes, row_count, columns));
    const QuantiseVariant& best = quantise_variants().front();
    QuantiseFunction quantise = from == DType::kBF16  ? best.bf16
                                : from == DType::kF16 ? best.f16
                                                      : best.f32;
    uint64_t non_finite = 0;
    for (uint64_t row = 0; row < row_count; row += kQuantBlock)
        non_finite += quantise(
            {rows + row * pitch_bytes, pitch_bytes, std::min(kQuantBlock, row_count - row), columns,
             fp8_out + row * columns, scales_out + row / kQuantBlock * quant_blocks(columns)});
    return non_finite;
}

} // namespace berth
