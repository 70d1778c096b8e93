// SPDX-License-Identifier: Apache-2.0
// Goal: the engine's kernels compute what they say, for shapes that do not divide evenly too.
// Method: the same source as the device's, run by an emulator of threads, warps and tensor cores,
// against plain loops in double.
#include "tests/engine/kernel_emulator.h"

#include "engine_shim/reference/fast/attend_all.cuh"
#include "engine_shim/reference/fast/matrix_kernel.cuh"
#include "engine_shim/reference/fast/small_kernels.cuh"
#include "engine_shim/reference/fast/stream_kernel.cuh"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace berth::engine::fast {
namespace {

using test::emulate;
using test::round_to_bf16;
using test::widen_bf16;

std::mt19937 random_bits(7);

float draw(float scale = 1.0F) {
    return std::normal_distribution<float>(0.0F, scale)(random_bits);
}
std::vector<Bf16> draw_bf16(size_t count, float scale = 1.0F) {
    std::vector<Bf16> made(count);
    for (Bf16& one : made)
        one = round_to_bf16(draw(scale));
    return made;
}
std::vector<float> draw_floats(size_t count, float scale = 1.0F) {
    std::vector<float> made(count);
    for (float& one : made)
        one = draw(scale);
    return made;
}
float e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15;
    const float fraction = static_cast<float>(bits & 7) / 8.0F;
    const float size =
        exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1.0F + fraction, exponent - 7);
    return (bits & 0x80) != 0 ? -size : size;
}

// Matrices side by side, in bf16 or FP8, with what they stand for.
struct Weights {
    std::vector<std::vector<Bf16>> bf16;
    std::vector<std::vector<uint8_t>> fp8;
    std::vector<std::vector<float>> scales;
    std::vector<std::vector<float>> values;

    Weights(std::vector<uint32_t> rows, uint32_t k, bool is_fp8) {
        for (const uint32_t n : rows) {
            std::vector<float> wide(size_t{n} * k);
            if (is_fp8) {
                std::vector<uint8_t> bytes(wide.size());
                const uint32_t across = (k + 127) / 128;
                std::vector<float> scale(size_t{(n + 127) / 128} * across);
                for (float& one : scale)
                    one = 0.01F + std::abs(draw(0.01F));
                for (size_t i = 0; i < wide.size(); ++i) {
                    bytes[i] = static_cast<uint8_t>(random_bits() % 256);
                    if ((bytes[i] & 0x7f) == 0x7f) // not a number
                        bytes[i] = 0x01;
                    wide[i] = e4m3(bytes[i]) * scale[i / k / 128 * across + i % k / 128];
                }
                fp8.push_back(std::move(bytes));
                scales.push_back(std::move(scale));
            } else {
                bf16.push_back(draw_bf16(wide.size(), 0.1F));
                for (size_t i = 0; i < wide.size(); ++i)
                    wide[i] = widen_bf16(bf16.back()[i]);
            }
            values.push_back(std::move(wide));
        }
    }
};

struct MatrixCase {
    std::vector<uint32_t> n;
    uint32_t k;
    uint32_t m;
    MatrixMode mode;
};

// By `groups` groups for each kColumns * 8 rows of x; 0: one for each kRowWarps tiles.
template <typename Kernel, typename Weight, int kColumns, int kMatrices>
void check_product(const MatrixCase& wanted, uint32_t tiles_each, uint32_t groups) {
    const Weights weights(wanted.n, wanted.k, Weight::kScaled);
    const std::vector<Bf16> x = draw_bf16(size_t{wanted.m} * wanted.k);
    const bool pair = kMatrices == 2;
    uint32_t width = pair ? wanted.n[0] : std::accumulate(wanted.n.begin(), wanted.n.end(), 0U);
    uint32_t tiles = 0;
    MatrixParams p{};
    for (size_t part = 0; part < wanted.n.size(); ++part) {
        p.weight[part] = Weight::kScaled ? static_cast<const void*>(weights.fp8[part].data())
                                         : weights.bf16[part].data();
        p.scales[part] = Weight::kScaled ? weights.scales[part].data() : nullptr;
        p.n[part] = wanted.n[part];
        if (part == 0 || !pair)
            tiles += (wanted.n[part] + 15) / 16;
    }
    p.parts = static_cast<uint32_t>(wanted.n.size());
    p.x = x.data();
    p.m = wanted.m;
    p.k = wanted.k;
    p.to_pitch = width;
    p.mode = wanted.mode;
    std::vector<float> to(size_t{wanted.m} * width, 0.5F);
    std::vector<Bf16> short_to(to.size());
    p.to = pair ? static_cast<void*>(short_to.data()) : to.data();
    const auto shared = std::make_unique<typename Kernel::Shared>();
    std::memset(static_cast<void*>(shared.get()), 0xff, sizeof *shared); // no numbers
    emulate({groups > 0 ? groups : (tiles + tiles_each - 1) / tiles_each,
             (wanted.m + 8 * kColumns - 1) / (8 * kColumns), 1},
            Kernel::kThreads, [&] { Kernel::run(p, *shared); });

    for (uint32_t m = 0; m < wanted.m; ++m) {
        uint32_t before = 0;
        for (size_t part = 0; part < (pair ? 1 : wanted.n.size()); ++part) {
            for (uint32_t n = 0; n < wanted.n[part]; ++n) {
                const auto product = [&](size_t which) {
                    double sum = 0;
                    for (uint32_t k = 0; k < wanted.k; ++k)
                        sum += double{widen_bf16(x[size_t{m} * wanted.k + k])} *
                               double{weights.values[which][size_t{n} * wanted.k + k]};
                    return sum;
                };
                const size_t at = size_t{m} * width + before + n;
                const double first = product(part);
                if (pair) {
                    const double expected = first / (1 + std::exp(-first)) * product(1);
                    ASSERT_NEAR(widen_bf16(short_to[at]), expected,
                                0.004 * std::abs(expected) + 1e-3)
                        << m << ", " << n;
                } else {
                    const double expected = first + (wanted.mode == kAdd ? 0.5 : 0.0);
                    ASSERT_NEAR(to[at], expected, 1e-3 + 1e-4 * std::abs(expected))
                        << m << ", part " << part << ", " << n;
                }
            }
            before += wanted.n[part];
        }
    }
}

template <typename Weight, int kColumns, int kRowWarps, int kSlices, int kMatrices>
void check_matrix(const MatrixCase& wanted) {
    check_product<MatrixKernel<Weight, kColumns, kMatrices, kRowWarps, kSlices>, Weight, kColumns,
                  kMatrices>(wanted, kRowWarps, 0);
}

// By fewer groups than there are tiles, and by more.
template <typename Weight, int kColumns, int kTiles, int kMatrices>
void check_stream(const MatrixCase& wanted, uint32_t groups) {
    check_product<StreamKernel<Weight, kColumns, kMatrices, kTiles>, Weight, kColumns, kMatrices>(
        wanted, 1, groups);
}

TEST(MatrixKernel, ThreeMatricesSideBySideGiveTheirProducts) {
    check_matrix<Bf16Weight, 1, 1, 8, 1>({{64, 32, 32}, 576, 3, kStore});
    check_matrix<Bf16Weight, 2, 2, 4, 1>({{64, 32, 32}, 1024, 16, kStore});
}

TEST(MatrixKernel, RowsThatDoNotFillATileAreLeftAlone) {
    check_matrix<Bf16Weight, 1, 1, 8, 1>({{41}, 64, 8, kStore});
    check_matrix<Bf16Weight, 4, 2, 4, 1>({{41}, 128, 29, kStore});
    check_matrix<Bf16Weight, 1, 2, 4, 1>({{7}, 192, 1, kStore});
}

TEST(MatrixKernel, MoreRowsOfXThanOneGroupTakes) {
    check_matrix<Bf16Weight, 1, 2, 4, 1>({{48}, 128, 21, kStore});
    check_matrix<Bf16Weight, 4, 1, 8, 1>({{16}, 256, 40, kAdd});
}

TEST(MatrixKernel, AddsToWhatIsThere) {
    check_matrix<Bf16Weight, 1, 1, 8, 1>({{48}, 1536, 2, kAdd});
}

TEST(MatrixKernel, PairsAreGated) {
    check_matrix<Bf16Weight, 1, 1, 8, 2>({{48, 48}, 576, 1, kSiluTimes});
    check_matrix<Bf16Weight, 2, 2, 4, 2>({{40, 40}, 320, 11, kSiluTimes});
}

TEST(MatrixKernel, Fp8BlocksAreScaledExactly) {
    check_matrix<Fp8Weight, 1, 1, 8, 1>({{144, 16, 16}, 576, 3, kStore});
    check_matrix<Fp8Weight, 1, 2, 4, 1>({{144}, 1152, 8, kAdd});
    check_matrix<Fp8Weight, 4, 1, 8, 1>({{20}, 256, 30, kStore});
    check_matrix<Fp8Weight, 1, 1, 8, 2>({{144, 144}, 384, 2, kSiluTimes});
    check_matrix<Fp8Weight, 2, 2, 4, 2>({{16, 16}, 192, 9, kSiluTimes});
}

TEST(StreamKernel, TilesOfThreeMatricesAreTakenInTurn) {
    check_stream<Bf16Weight, 1, 1, 1>({{64, 32, 32}, 576, 3, kStore}, 3);
    check_stream<Bf16Weight, 1, 2, 1>({{64, 32, 32}, 576, 3, kStore}, 3);
    check_stream<Bf16Weight, 2, 2, 1>({{64, 32, 32}, 2112, 16, kStore}, 1);
    check_stream<Bf16Weight, 4, 3, 1>({{41, 16, 7}, 4096, 29, kStore}, 1);
    check_stream<Bf16Weight, 1, 3, 1>({{64, 48, 48}, 1024, 8, kStore}, 2);
}

TEST(StreamKernel, FewerStepsThanPlacesInTheQueueAndMore) {
    check_stream<Bf16Weight, 1, 1, 1>({{41}, 64, 8, kStore}, 2);
    check_stream<Bf16Weight, 1, 2, 1>({{7}, 192, 1, kStore}, 3);
    check_stream<Bf16Weight, 1, 1, 1>({{48}, 8256, 1, kStore}, 1);
    check_stream<Bf16Weight, 4, 2, 1>({{48}, 8256, 31, kStore}, 1);
}

TEST(StreamKernel, AddsToWhatIsThereAndGatesPairs) {
    check_stream<Bf16Weight, 1, 2, 1>({{48}, 1536, 2, kAdd}, 2);
    check_stream<Bf16Weight, 4, 1, 1>({{16}, 256, 40, kAdd}, 1);
    check_stream<Bf16Weight, 1, 1, 2>({{48, 48}, 576, 1, kSiluTimes}, 2);
    check_stream<Bf16Weight, 2, 2, 2>({{40, 40}, 320, 11, kSiluTimes}, 2);
    check_stream<Bf16Weight, 4, 2, 2>({{72, 72}, 1600, 30, kSiluTimes}, 1);
}

TEST(StreamKernel, Fp8BlocksAreScaledExactly) {
    check_stream<Fp8Weight, 1, 1, 1>({{144, 16, 16}, 576, 3, kStore}, 3);
    check_stream<Fp8Weight, 1, 2, 1>({{144}, 4224, 8, kAdd}, 2);
    check_stream<Fp8Weight, 4, 1, 1>({{20}, 256, 30, kStore}, 5);
    check_stream<Fp8Weight, 1, 2, 2>({{144, 144}, 384, 2, kSiluTimes}, 4);
    check_stream<Fp8Weight, 4, 1, 2>({{144, 144}, 1216, 25, kSiluTimes}, 4);
    check_stream<Fp8Weight, 2, 3, 1>({{144, 16}, 5184, 12, kStore}, 2);
}

// Pages in an order of their own, filled with numbers; what no sequence has written is not one.
struct PagedCase {
    static constexpr uint32_t kLayers = 2;
    static constexpr uint32_t kLayer = 1;
    uint32_t dim;
    uint32_t kv_heads;
    uint32_t block_tokens = 16;
    std::vector<int32_t> positions;
    std::vector<Bf16> memory;
    std::vector<int32_t> tables;
    StepHeader header{};
    Pages pages{};

    PagedCase(uint32_t dims, uint32_t heads, std::vector<int32_t> at)
        : dim(dims), kv_heads(heads), positions(std::move(at)) {
        int32_t longest = 0;
        for (const int32_t position : positions)
            longest = std::max(longest, position + 1);
        header.table_pitch = longest / static_cast<int32_t>(block_tokens) + 1;
        const auto blocks =
            static_cast<uint32_t>(header.table_pitch) * static_cast<uint32_t>(positions.size());
        pages.plane_stride = uint64_t{block_tokens} * kv_heads * dim;
        pages.block_stride = pages.plane_stride * 2 * kLayers;
        memory.assign(blocks * pages.block_stride, 0x7fc0); // NaN
        std::vector<int32_t> order(blocks);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random_bits);
        tables = order;
        pages.memory = memory.data();
        pages.block_tokens = block_tokens;
        pages.kv_heads = kv_heads;
        pages.header = &header;
        pages.tables = tables.data();
        for (uint32_t row = 0; row < positions.size(); ++row)
            for (int32_t token = 0; token <= positions[row]; ++token)
                for (uint32_t i = 0; i < 2 * kv_heads * dim; ++i)
                    *at_place(row, static_cast<uint32_t>(token), i / (kv_heads * dim),
                              i % (kv_heads * dim)) = round_to_bf16(draw());
    }
    Bf16* at_place(uint32_t sequence, uint32_t token, uint32_t value, uint32_t place) {
        const auto block = static_cast<uint32_t>(
            tables[sequence * static_cast<uint32_t>(header.table_pitch) + token / block_tokens]);
        return memory.data() + block * pages.block_stride +
               (kLayer * 2 + value) * pages.plane_stride +
               uint64_t{token % block_tokens} * kv_heads * dim + place;
    }
};

template <int kDim, int kHeads>
void check_attention(uint32_t heads, uint32_t kv_heads, std::vector<int32_t> positions,
                     uint32_t splits) {
    using Kernel = AttendKernel<kDim, kHeads>;
    PagedCase paged(kDim, kv_heads, positions);
    const auto rows = static_cast<uint32_t>(positions.size());
    const std::vector<Bf16> q = draw_bf16(size_t{rows} * heads * kDim);
    std::vector<float> partial(size_t{rows} * heads * splits * (kDim + kPartialExtra));
    std::vector<Bf16> to(q.size(), 0x7fc0);
    AttendParams p{};
    p.q = q.data();
    p.positions = positions.data();
    p.pages = paged.pages;
    p.partial = partial.data();
    p.to = to.data();
    p.scale = 1.44269504F / std::sqrt(static_cast<float>(kDim));
    p.layer = PagedCase::kLayer;
    p.heads = heads;
    p.splits = splits;
    const uint32_t shared_heads = heads / kv_heads;
    const auto shared = std::make_unique<typename Kernel::Shared>();
    emulate({kv_heads * ((shared_heads + kHeads - 1) / kHeads), splits, rows}, Kernel::kThreads,
            [&] { Kernel::run(p, *shared); });
    MergeShared merge;
    if (splits > 1)
        emulate({heads, rows, 1}, kDim, [&] { attend_merge<kDim>(p, merge); });
    for (uint32_t row = 0; row < rows; ++row)
        for (uint32_t head = 0; head < heads; ++head) {
            const uint32_t first = head / shared_heads * kDim;
            std::vector<double> sums(kDim);
            double weight = 0;
            for (int32_t token = 0; token <= positions[row]; ++token) {
                double score = 0;
                for (uint32_t i = 0; i < kDim; ++i)
                    score += double{widen_bf16(q[(size_t{row} * heads + head) * kDim + i])} *
                             double{widen_bf16(
                                 *paged.at_place(row, static_cast<uint32_t>(token), 0, first + i))};
                const double share = std::exp(score / std::sqrt(double{kDim}));
                weight += share;
                for (uint32_t i = 0; i < kDim; ++i)
                    sums[i] += share * double{widen_bf16(*paged.at_place(
                                           row, static_cast<uint32_t>(token), 1, first + i))};
            }
            for (uint32_t i = 0; i < kDim; ++i)
                ASSERT_NEAR(widen_bf16(to[(size_t{row} * heads + head) * kDim + i]),
                            weight > 0 ? sums[i] / weight : 0.0, 0.01)
                    << "row " << row << ", head " << head << ", place " << i;
        }
}

TEST(AttendKernel, ContextsOfAnyLengthInOnePiece) {
    check_attention<128, 4>(8, 2, {0, 5, 16, 37, -1}, 1);
    check_attention<64, 1>(2, 2, {31, 70}, 1);
}

TEST(AttendKernel, PiecesAreMergedAlsoEmptyOnes) {
    check_attention<128, 4>(4, 1, {130, 3, -1}, 8);
    check_attention<64, 2>(4, 2, {99, 15}, 3);
}

TEST(AttendKernel, HeadsThatDoNotFillTheirGroup) {
    check_attention<64, 4>(9, 3, {40}, 2);
    check_attention<128, 4>(14, 2, {21}, 1);
    check_attention<128, 2>(2, 1, {21}, 1);
}

template <int kDim>
void check_rope(bool with_bias, bool with_norm) {
    constexpr uint32_t kHeads = 6;
    constexpr uint32_t kKvHeads = 2;
    PagedCase paged(kDim, kKvHeads, {18, 40});
    const std::vector<int32_t> positions = {17, 40, -1};
    const std::vector<int32_t> sequences = {0, 1, 0};
    const uint32_t width = (kHeads + 2 * kKvHeads) * kDim;
    const std::vector<float> qkv = draw_floats(3 * size_t{width});
    const std::vector<float> rope = draw_floats(3 * size_t{kDim});
    const std::vector<Bf16> bias = draw_bf16(width);
    const std::vector<Bf16> q_norm = draw_bf16(kDim);
    const std::vector<Bf16> k_norm = draw_bf16(kDim);
    std::vector<Bf16> q(3 * size_t{kHeads} * kDim, 0x1234);
    const std::vector<Bf16> before = paged.memory;
    RopeParams p{};
    p.from.qkv = qkv.data();
    p.positions = positions.data();
    p.sequences = sequences.data();
    p.from.rope = rope.data();
    if (with_bias) {
        p.from.bias[0] = bias.data();
        p.from.bias[1] = bias.data() + kHeads * kDim;
        p.from.bias[2] = bias.data() + (kHeads + kKvHeads) * kDim;
    }
    p.from.q_norm = with_norm ? q_norm.data() : nullptr;
    p.from.k_norm = with_norm ? k_norm.data() : nullptr;
    p.q = q.data();
    p.pages = paged.pages;
    p.from.epsilon = 1e-5F;
    p.layer = PagedCase::kLayer;
    p.from.heads = kHeads;
    p.from.kv_heads = kKvHeads;
    emulate({3, 2, 1}, kSmallThreads, [&] { rope_store<kDim>(p); });
    for (uint32_t row = 0; row < 2; ++row)
        for (uint32_t head = 0; head < kHeads + 2 * kKvHeads; ++head) {
            std::vector<double> x(kDim);
            double squares = 0;
            for (uint32_t i = 0; i < kDim; ++i) {
                x[i] = qkv[row * width + head * kDim + i];
                if (with_bias)
                    x[i] += widen_bf16(bias[head * kDim + i]);
                squares += x[i] * x[i];
            }
            const bool is_value = head >= kHeads + kKvHeads;
            const auto& weight = head < kHeads ? q_norm : k_norm;
            if (with_norm && !is_value)
                for (uint32_t i = 0; i < kDim; ++i)
                    x[i] *= widen_bf16(weight[i]) / std::sqrt(squares / kDim + 1e-5);
            for (uint32_t i = 0; i < kDim; ++i) {
                const uint32_t pair = i % (kDim / 2);
                const double cosine = rope[row * kDim + 2 * pair];
                const double sine = rope[row * kDim + 2 * pair + 1];
                double expected = x[i];
                if (!is_value)
                    expected = i < kDim / 2 ? x[i] * cosine - x[i + kDim / 2] * sine
                                            : x[i] * cosine + x[i - kDim / 2] * sine;
                const auto token = static_cast<uint32_t>(positions[row]);
                const uint32_t kv = is_value ? head - kHeads - kKvHeads : head - kHeads;
                const Bf16 found =
                    head < kHeads ? q[(row * kHeads + head) * kDim + i]
                                  : *paged.at_place(row, token, is_value ? 1 : 0, kv * kDim + i);
                ASSERT_NEAR(widen_bf16(found), expected, 0.004 * std::abs(expected) + 1e-4)
                    << "row " << row << ", head " << head << ", place " << i;
            }
        }
    EXPECT_EQ(q[2 * kHeads * kDim], 0x1234) << "a row without a position was written";
    size_t changed = 0;
    for (size_t i = 0; i < before.size(); ++i)
        changed += before[i] != paged.memory[i] ? 1 : 0;
    EXPECT_LE(changed, 2 * 2 * size_t{kKvHeads} * kDim) << "other places of the pages changed";
}

TEST(SmallKernels, HeadsAreNormalisedRotatedAndStoredInTheirPages) {
    check_rope<128>(false, true);
    check_rope<64>(true, false);
}

// By rope_store, attend and merge, and by the one that does all of it.
template <int kDim, int kHeads>
void check_attend_all(uint32_t heads, uint32_t kv_heads, std::vector<int32_t> positions,
                      uint32_t splits) {
    using Kernel = AttendKernel<kDim, kHeads>;
    using All = AttendAll<kDim, kHeads>;
    PagedCase paged(kDim, kv_heads, positions);
    const auto rows = static_cast<uint32_t>(positions.size());
    for (uint32_t row = 0; row < rows; ++row) // the newest is not there yet
        for (uint32_t i = 0; positions[row] >= 0 && i < 2 * kv_heads * kDim; ++i)
            *paged.at_place(row, static_cast<uint32_t>(positions[row]), i / (kv_heads * kDim),
                            i % (kv_heads * kDim)) = 0x7fc0; // NaN
    const uint32_t width = (heads + 2 * kv_heads) * kDim;
    const std::vector<float> qkv = draw_floats(rows * size_t{width});
    const std::vector<float> rope = draw_floats(rows * size_t{kDim});
    const std::vector<Bf16> bias = draw_bf16(width), norm = draw_bf16(kDim);
    std::vector<int32_t> sequences(rows);
    std::iota(sequences.begin(), sequences.end(), 0);
    std::vector<Bf16> q(rows * size_t{heads} * kDim), one_by_one(q.size(), 0x7fc0),
        all(q.size(), 0x7fc0);
    std::vector<float> partial(rows * size_t{heads} * splits * (kDim + kPartialExtra));
    const uint32_t groups = kv_heads * ((heads / kv_heads + kHeads - 1) / kHeads);
    std::vector<uint32_t> arrived(rows * groups);
    AttendParams p{};
    p.positions = paged.positions.data();
    p.partial = partial.data();
    p.scale = 0.1F;
    p.layer = PagedCase::kLayer;
    p.heads = heads;
    p.splits = splits;
    p.heads_from = {qkv.data(),  rope.data(), {bias.data(), bias.data(), bias.data()},
                    norm.data(), norm.data(), 1e-5F,
                    heads,       kv_heads};
    p.arrived = arrived.data();
    const auto shared = std::make_unique<typename All::Shared>();

    std::vector<Bf16> memory = paged.memory;
    p.pages = paged.pages;
    p.pages.memory = memory.data();
    p.to = all.data();
    emulate({groups, splits, rows}, Kernel::kThreads, [&] { All::run(p, *shared); });
    EXPECT_EQ(arrived, std::vector<uint32_t>(arrived.size())) << "left for the next layer as found";

    p.pages = paged.pages;
    p.q = q.data();
    p.to = one_by_one.data();
    RopeParams rope_params{
        p.heads_from, p.positions, sequences.data(), q.data(), paged.pages, p.layer, 0};
    emulate({rows, (heads + 2 * kv_heads + kSmallWarps - 1) / kSmallWarps, 1}, kSmallThreads,
            [&] { rope_store<kDim>(rope_params); });
    emulate({groups, splits, rows}, Kernel::kThreads, [&] { Kernel::run(p, *shared); });
    MergeShared merge;
    if (splits > 1)
        emulate({heads, rows, 1}, kDim, [&] { attend_merge<kDim>(p, merge); });
    EXPECT_EQ(all, one_by_one);
    EXPECT_EQ(memory, paged.memory) << "the newest keys and values";
}

TEST(AttendKernel, AllInOneGivesTheSameAsOneAfterTheOther) {
    check_attend_all<128, 4>(8, 2, {0, 5, 16, 37, -1}, 1);
    check_attend_all<128, 4>(4, 1, {130, 3, -1, 64}, 8);
    check_attend_all<64, 2>(4, 2, {99, 15}, 3);
    check_attend_all<64, 4>(18, 3, {40, 127}, 2);
    check_attend_all<64, 1>(2, 2, {31, 70}, 4);
}

TEST(SmallKernels, NormTakesTheRowsThatAreAskedFor) {
    constexpr uint32_t kHidden = 576;
    const std::vector<float> from = draw_floats(3 * kHidden);
    const std::vector<Bf16> weight = draw_bf16(kHidden);
    const std::vector<int32_t> rows = {2, 0};
    std::vector<Bf16> to(2 * kHidden);
    NormParams p{from.data(), rows.data(), weight.data(), to.data(), 1e-6F, kHidden};
    float shared[kSmallWarps];
    emulate({2, 1, 1}, kSmallThreads, [&] { norm(p, shared); });
    for (uint32_t row = 0; row < 2; ++row) {
        const float* x = from.data() + static_cast<uint32_t>(rows[row]) * kHidden;
        double squares = 0;
        for (uint32_t i = 0; i < kHidden; ++i)
            squares += double{x[i]} * double{x[i]};
        for (uint32_t i = 0; i < kHidden; ++i) {
            const double expected =
                x[i] / std::sqrt(squares / kHidden + 1e-6) * widen_bf16(weight[i]);
            ASSERT_NEAR(widen_bf16(to[row * kHidden + i]), expected,
                        0.004 * std::abs(expected) + 1e-6);
        }
    }
}

TEST(SmallKernels, EmbeddingRowsAndAnglesOfTheirPositions) {
    constexpr uint32_t kHidden = 320;
    constexpr uint32_t kHalf = 32;
    const std::vector<Bf16> table = draw_bf16(5 * kHidden);
    const std::vector<int32_t> tokens = {4, 0};
    const std::vector<int32_t> positions = {9, 1000};
    const std::vector<float> inverse = draw_floats(kHalf, 0.5F);
    std::vector<float> residual(2 * kHidden), rope(2 * kHalf * 2);
    std::vector<uint64_t> keys(3, 99);
    std::vector<uint32_t> arrived(701, 99);
    EmbedParams p{tokens.data(),
                  positions.data(),
                  table.data(),
                  inverse.data(),
                  residual.data(),
                  rope.data(),
                  keys.data(),
                  arrived.data(),
                  1.25F,
                  kHidden,
                  kHalf,
                  3,
                  700};
    emulate({2, 1, 1}, kSmallThreads, [&] { embed(p); });
    for (uint32_t row = 0; row < 2; ++row) {
        for (uint32_t i = 0; i < kHidden; ++i)
            ASSERT_EQ(residual[row * kHidden + i],
                      widen_bf16(table[static_cast<uint32_t>(tokens[row]) * kHidden + i]));
        for (uint32_t i = 0; i < kHalf; ++i) {
            const float angle = static_cast<float>(positions[row]) * inverse[i];
            ASSERT_NEAR(rope[(row * kHalf + i) * 2], 1.25F * std::cos(angle), 1e-5);
            ASSERT_NEAR(rope[(row * kHalf + i) * 2 + 1], 1.25F * std::sin(angle), 1e-5);
        }
    }
    EXPECT_EQ(keys, (std::vector<uint64_t>{0, 0, 0}));
    EXPECT_EQ(std::accumulate(arrived.begin(), arrived.end(), 0U), 99U) << "all but the last";
}

TEST(SmallKernels, TheLargestLogitWinsAndOfEqualOnesTheFirst) {
    constexpr uint32_t kWidth = 5000;
    std::vector<float> logits = draw_floats(2 * kWidth);
    for (uint32_t i = 0; i < kWidth; ++i)
        logits[kWidth + i] = -5.0F - std::abs(logits[kWidth + i]);
    logits[777] = logits[4001] = 9.0F;
    logits[kWidth + 4999] = -4.0F;
    std::vector<uint64_t> keys(2);
    uint64_t shared[kSmallWarps];
    LargestParams p{logits.data(), keys.data(), kWidth, 4};
    emulate({4, 2, 1}, kSmallThreads, [&] { largest(p, shared); });
    EXPECT_EQ(0xffffffffU - static_cast<uint32_t>(keys[0]), 777U);
    EXPECT_EQ(0xffffffffU - static_cast<uint32_t>(keys[1]), 4999U);
}

TEST(SmallKernels, GateTimesUp) {
    constexpr uint32_t kWidth = 520;
    const std::vector<Bf16> from = draw_bf16(2 * 2 * kWidth, 2.0F);
    std::vector<Bf16> to(2 * kWidth);
    SiluParams p{from.data(), to.data(), kWidth};
    emulate({2, 2, 1}, kSmallThreads, [&] { silu_times(p); });
    for (uint32_t row = 0; row < 2; ++row)
        for (uint32_t i = 0; i < kWidth; ++i) {
            const double gate = widen_bf16(from[row * 2 * kWidth + i]);
            const double expected =
                gate / (1 + std::exp(-gate)) * widen_bf16(from[row * 2 * kWidth + kWidth + i]);
            ASSERT_NEAR(widen_bf16(to[row * kWidth + i]), expected,
                        0.004 * std::abs(expected) + 1e-6);
        }
}

TEST(SmallKernels, PagesBecomeRows) {
    PagedCase paged(64, 3, {20, 33});
    const std::vector<int32_t> starts = {0, 34, 55};
    const std::vector<int32_t> sequences = {1, 0};
    constexpr uint32_t kRow = 3 * 64;
    std::vector<Bf16> keys(55 * kRow), values(55 * kRow);
    GatherParams p{paged.pages,       starts.data(), sequences.data(),
                   keys.data(),       values.data(), 2,
                   PagedCase::kLayer, kRow};
    emulate({55, 1, 1}, 32, [&] { gather(p); });
    for (uint32_t i = 0; i < 55 * kRow; ++i) {
        const uint32_t row = i / kRow;
        const uint32_t sequence = row < 34 ? 1 : 0;
        const uint32_t token = row < 34 ? row : row - 34;
        ASSERT_EQ(keys[i], *paged.at_place(sequence, token, 0, i % kRow)) << row;
        ASSERT_EQ(values[i], *paged.at_place(sequence, token, 1, i % kRow)) << row;
    }
}

TEST(SmallKernels, EveryFp8PatternBecomesItsValue) {
    constexpr uint32_t kRows = 130;
    constexpr uint32_t kColumns = 256;
    std::vector<uint8_t> from(kRows * kColumns);
    for (uint32_t i = 0; i < from.size(); ++i)
        from[i] = static_cast<uint8_t>((i & 0x7f) == 0x7f ? 0 : i);
    const std::vector<float> scales = {1.0F, 0.5F, 2.0F, 0.25F};
    std::vector<Bf16> to(from.size());
    DequantiseParams p{from.data(), scales.data(), to.data(), kRows, kColumns};
    emulate({(kRows * kColumns / 4 + 255) / 256, 1, 1}, kSmallThreads, [&] { dequantise(p); });
    for (uint32_t i = 0; i < from.size(); ++i)
        ASSERT_EQ(widen_bf16(to[i]),
                  e4m3(from[i]) * scales[i / kColumns / 128 * 2 + i % kColumns / 128])
            << i;
}

} // namespace
} // namespace berth::engine::fast
