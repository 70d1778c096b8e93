// SPDX-License-Identifier: Apache-2.0
// Goal: the GPU's kernels give the CPU's bits, at memory speed. Method: exhaustive and random
// inputs on the first visible GPU against quantise_rows() and XXH3; rates are printed, never asked
// for. Skips itself without a GPU. Run it by itself: build/release/tests/kernels_gpu_test
#include "cache/weights/checksum.h"
#include "cache/weights/device_kernels.h"
#include "cache/weights/quantise.h"
#include "tests/kernels/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace berth {
namespace {

using test::Draw;
using test::draw_matrix;
using test::Matrix;
using test::Random;

using Clock = std::chrono::steady_clock;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class KernelsOnGpu : public ::testing::Test {
  protected:
    void SetUp() override {
        auto opened = open_device("cuda");
        if (!opened && opened.error().code == ErrorCode::kUnsupported)
            GTEST_SKIP() << opened.error().message;
        ASSERT_TRUE(opened) << opened.error().message;
        device_ = std::move(*opened);
        auto start = Clock::now();
        auto made = DeviceKernels::create(*device_);
        ASSERT_TRUE(made) << made.error().message;
        kernels_ = std::move(*made);
        std::printf("%s: %s (loaded in %.1f ms)\n", device_->capabilities().name.c_str(),
                    kernels_->place().c_str(), seconds_since(start) * 1e3);
        ASSERT_TRUE(kernels_->on_device()) << kernels_->place();
    }

    Mapping buffer(uint64_t bytes) {
        auto made = device_->create_device_buffer(bytes);
        EXPECT_TRUE(made) << (made ? "" : made.error().message);
        return std::move(*made);
    }
    void copy_in(std::byte* to, const std::vector<std::byte>& from) {
        Status copied = device_->copy_to_device(to, from.data(), from.size());
        ASSERT_TRUE(copied) << copied.error().message;
    }
    template <typename T>
    std::vector<T> copy_out(const std::byte* from, size_t count) {
        std::vector<T> copy(count);
        Status copied = device_->copy_to_host(reinterpret_cast<std::byte*>(copy.data()), from,
                                              count * sizeof(T));
        EXPECT_TRUE(copied) << (copied ? "" : copied.error().message);
        return copy;
    }

    // `shift` elements in front of the rows and of the output put them off their alignment.
    void expect_same(const Matrix& from, const std::string& what, uint64_t shift = 0) {
        uint64_t scales = scale_count(from.rows, from.columns);
        uint64_t elements = from.rows * from.columns;
        Mapping rows = buffer(from.bytes.size() + shift * from.size());
        Mapping fp8 = buffer(elements + shift);
        Mapping scales_at = buffer(scales * sizeof(float));
        copy_in(rows.data() + shift * from.size(), from.bytes);
        uint64_t before = kernels_->non_finite().value()[0];
        Status started = kernels_->start_quantise(1, {from.dtype, rows.data() + shift * from.size(),
                                                      from.pitch, from.rows, from.columns,
                                                      fp8.data() + shift, scales_at.data(), 0});
        ASSERT_TRUE(started) << started.error().message;
        Status waited = device_->wait_lane(1);
        ASSERT_TRUE(waited) << waited.error().message;

        std::vector<std::byte> expected(elements);
        std::vector<float> expected_scales(scales);
        auto non_finite = quantise_rows(from.dtype, from.bytes.data(), from.pitch, from.rows,
                                        from.columns, expected.data(), expected_scales.data());
        ASSERT_TRUE(non_finite) << non_finite.error().message;
        EXPECT_EQ(kernels_->non_finite().value()[0] - before, *non_finite) << what;
        auto found = copy_out<std::byte>(fp8.data() + shift, elements);
        auto differ = std::ranges::mismatch(found, expected);
        ASSERT_TRUE(differ.in1 == found.end())
            << what << ": element " << differ.in1 - found.begin() << " is "
            << static_cast<int>(*differ.in1) << ", expected " << static_cast<int>(*differ.in2);
        auto found_scales = copy_out<float>(scales_at.data(), scales);
        ASSERT_EQ(std::memcmp(found_scales.data(), expected_scales.data(), scales * sizeof(float)),
                  0)
            << what;
    }

    std::unique_ptr<Device> device_;
    std::unique_ptr<DeviceKernels> kernels_;
};

TEST_F(KernelsOnGpu, QuantiseEqualsTheCpuOverShapesTypesAndNumbers) {
    constexpr uint64_t kShapes[][3] = {
        {1, 1, 0},     {1, 128, 0},     {128, 128, 0},  {129, 136, 0}, {127, 121, 3},
        {300, 520, 8}, {1024, 2048, 0}, {513, 1001, 1}, {2, 16384, 0}, {5000, 7, 1}};
    Random random;
    int compared = 0;
    for (DType dtype : kTypes)
        for (Draw draw : test::kDraws)
            for (auto [rows, columns, gap] : kShapes)
                for (uint64_t shift : {0U, 1U, 4U}) {
                    Matrix from = draw_matrix(random, dtype, rows, columns, draw, gap);
                    expect_same(from,
                                std::string(to_string(dtype)) + " draw " +
                                    std::to_string(static_cast<int>(draw)) + " " +
                                    std::to_string(rows) + "x" + std::to_string(columns) +
                                    " shift " + std::to_string(shift),
                                shift);
                    ++compared;
                    if (HasFatalFailure())
                        return;
                }
    std::printf("%d matrices equal to the bit\n", compared);
}

TEST_F(KernelsOnGpu, EveryPatternOfSixteenBitsBesideEveryLargestElement) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
        uint32_t infinity = dtype == DType::kBF16 ? 0x7f80 : 0x7c00;
        // Each block of 128 rows holds 16,384 of the patterns with magnitudes up to its own limit.
        for (uint32_t limit = 1; limit < infinity; limit += dtype == DType::kBF16 ? 509 : 487) {
            Matrix from{dtype, 128, 512, 1024, std::vector<std::byte>(128 * 1024)};
            for (uint32_t index = 0; index < 65536; ++index) {
                uint32_t bits = (index & 0x8000U) | (index & 0x7fffU) % (limit + 1);
                std::memcpy(from.at(index / 512, index % 512), &bits, 2);
            }
            expect_same(from, std::string(to_string(dtype)) + " up to " + std::to_string(limit));
            if (HasFatalFailure())
                return;
        }
        Matrix all{dtype, 256, 256, 512, std::vector<std::byte>(256 * 512)};
        for (uint32_t pattern = 0; pattern < 65536; ++pattern)
            std::memcpy(all.at(pattern / 256, pattern % 256), &pattern, 2);
        expect_same(all, "all patterns");
    }
}

TEST_F(KernelsOnGpu, MillionsOfFloatsOfAnySize) {
    Random random;
    for (Draw draw : {Draw::kAnyBits, Draw::kWeights, Draw::kWeights, Draw::kTiny})
        expect_same(draw_matrix(random, DType::kF32, 4096, 4096, draw), "4096 x 4096");
}

TEST_F(KernelsOnGpu, HashesEqualXxh3AtEveryLength) {
    Random random;
    std::vector<uint64_t> sizes;
    for (uint64_t size = 0; size <= 4200; ++size)
        sizes.push_back(size);
    for (uint64_t size = 65536 - 70; size <= 65536 + 300; ++size)
        sizes.push_back(size);
    for (int more = 0; more < 500; ++more)
        sizes.push_back(random.next() % 500000);
    sizes.push_back(100 * kMiB + 12345);
    uint64_t total = 0;
    for (uint64_t size : sizes)
        total += (size + 15) / 16 * 16;
    std::vector<std::byte> bytes(total);
    for (size_t at = 0; at < bytes.size(); at += 8) {
        uint64_t word = random.next();
        std::memcpy(bytes.data() + at, &word, 8);
    }
    Mapping there = buffer(total);
    copy_in(there.data(), bytes);
    std::vector<DeviceExtent> extents;
    std::vector<uint64_t> expected;
    uint64_t at = 0;
    for (uint64_t size : sizes) {
        extents.push_back({there.data() + at, size});
        for (uint64_t done = 0; done < size; done += kChecksumBlockBytes)
            expected.push_back(hash_block(
                std::span(bytes).subspan(at + done, std::min(kChecksumBlockBytes, size - done))));
        at += (size + 15) / 16 * 16;
    }
    auto found = kernels_->hash_blocks(extents);
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_EQ(found->size(), expected.size());
    for (size_t block = 0; block < expected.size(); ++block)
        ASSERT_EQ((*found)[block], expected[block]) << "block " << block;
    std::printf("%zu blocks of %zu extents equal\n", expected.size(), sizes.size());
}

// A segment that is mapped for reading only, as verify finds it; one bit flipped before sealing.
TEST_F(KernelsOnGpu, HashesOfASealedSegmentShowOneFlippedBit) {
    std::vector<std::byte> bytes(64 * kMiB, std::byte{0x5a});
    std::vector<std::vector<uint64_t>> hashes;
    uint64_t at = 17 * kMiB + 4321;
    for (int round = 0; round < 2; ++round) {
        auto writable = device_->create_segment(bytes.size(), "berth-weights").value();
        copy_in(writable->data(), bytes);
        Segment sealed = writable->seal().value();
        Mapping mapping = device_->map_read_only(sealed).value();
        DeviceExtent all{mapping.data(), bytes.size()};
        hashes.push_back(kernels_->hash_blocks(std::span(&all, 1)).value());
        bytes[at] ^= std::byte{1};
    }
    for (size_t block = 0; block < hashes[0].size(); ++block)
        ASSERT_EQ(hashes[0][block] == hashes[1][block], block != at / kChecksumBlockBytes) << block;
}

TEST_F(KernelsOnGpu, TellsTheRateOfQuantise) {
    constexpr uint64_t kRows = 8192;
    constexpr uint64_t kColumns = 16384;
    for (DType dtype : kTypes) {
        uint64_t size = bits_of(dtype) / 8;
        Mapping rows = buffer(kRows * kColumns * size);
        Mapping fp8 = buffer(kRows * kColumns);
        Mapping scales = buffer(scale_count(kRows, kColumns) * sizeof(float));
        Random random;
        Matrix band = draw_matrix(random, dtype, 128, kColumns, Draw::kWeights);
        for (uint64_t row = 0; row < kRows; row += 128)
            copy_in(rows.data() + row * kColumns * size, band.bytes);
        QuantiseJob job{dtype,    rows.data(), kColumns * size, kRows,
                        kColumns, fp8.data(),  scales.data(),   0};
        constexpr int kLaunches = 20;
        double best = 1e9;
        for (int round = 0; round < 4; ++round) {
            auto start = Clock::now();
            for (int launch = 0; launch < kLaunches; ++launch)
                ASSERT_TRUE(kernels_->start_quantise(0, job));
            ASSERT_TRUE(device_->wait_lane(0));
            best = std::min(best, seconds_since(start) / kLaunches);
        }
        auto bytes_in = static_cast<double>(kRows * kColumns * size);
        double bytes_moved = bytes_in + static_cast<double>(kRows * kColumns);
        // The bands of a ring are smaller than what a launch needs to fill the device.
        job.row_count = 128;
        auto start = Clock::now();
        for (int launch = 0; launch < 1000; ++launch)
            ASSERT_TRUE(kernels_->start_quantise(0, job));
        ASSERT_TRUE(device_->wait_lane(0));
        double band_rate = bytes_in / (kRows / 128) * 1000 / seconds_since(start);
        std::printf(
            "quantise %-4s: %7.0f GB/s of input (%.0f GB/s read and written); a band of 128 "
            "rows x %llu: %.0f GB/s of input\n",
            std::string(to_string(dtype)).c_str(), bytes_in / best / 1e9, bytes_moved / best / 1e9,
            static_cast<unsigned long long>(kColumns), band_rate / 1e9);
    }
}

TEST_F(KernelsOnGpu, TellsTheRateOfHashes) {
    DeviceMemory memory = device_->memory().value();
    uint64_t most = std::min(16 * kGiB, (memory.total_bytes - memory.used_bytes) / 2 / kMiB * kMiB);
    for (uint64_t bytes : {64 * kMiB, 256 * kMiB, kGiB, 4 * kGiB, most}) {
        if (bytes > most)
            continue;
        Mapping all = buffer(bytes);
        // As a model's tensors: 32 MiB each.
        std::vector<DeviceExtent> extents;
        for (uint64_t at = 0; at < bytes; at += 32 * kMiB)
            extents.push_back({all.data() + at, std::min(32 * kMiB, bytes - at)});
        double best = 1e9;
        for (int round = 0; round < 4; ++round) {
            auto start = Clock::now();
            auto hashes = kernels_->hash_blocks(extents);
            ASSERT_TRUE(hashes) << hashes.error().message;
            best = std::min(best, seconds_since(start));
        }
        std::printf(
            "hash_blocks: %6llu MiB in %7.2f ms, %6.0f GB/s, results on the host included\n",
            static_cast<unsigned long long>(bytes / kMiB), best * 1e3,
            static_cast<double>(bytes) / best / 1e9);
    }
}

TEST_F(KernelsOnGpu, TellsTheRateOfColumnSlicesOverTheWire) {
    constexpr uint64_t kRows = 4096;
    auto ring = device_->create_host_buffer(64 * kMiB);
    ASSERT_TRUE(ring) << ring.error().message;
    Mapping there = buffer(64 * kMiB);
    constexpr uint64_t kPitch = 64 * kMiB / kRows;
    for (uint64_t parts : {1U, 2U, 4U, 8U}) {
        double best = 1e9;
        for (int round = 0; round < 5; ++round) {
            auto start = Clock::now();
            for (uint64_t part = 0; part < parts; ++part)
                ASSERT_TRUE(device_->start_copy_2d_to_device(
                    static_cast<int>(part % Device::kLanes),
                    there.data() + part * kRows * (kPitch / parts), kPitch / parts,
                    ring->mapping.data() + part * (kPitch / parts), kPitch, kPitch / parts, kRows));
            for (int lane = 0; lane < Device::kLanes; ++lane)
                ASSERT_TRUE(device_->wait_lane(lane));
            best = std::min(best, seconds_since(start));
        }
        std::printf("64 MiB as %llu column slices of %llu bytes a row: %.1f GB/s\n",
                    static_cast<unsigned long long>(parts),
                    static_cast<unsigned long long>(kPitch / parts),
                    static_cast<double>(64 * kMiB) / best / 1e9);
    }
}

} // namespace
} // namespace berth
