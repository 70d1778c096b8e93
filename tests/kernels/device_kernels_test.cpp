// SPDX-License-Identifier: Apache-2.0
// Goal: one contract for what is computed on weights where they lie. Method: each test runs on a
// host device (in place), on a device that only copies reach, and on the first visible GPU; without
// one its cuda half is skipped and says why. Expected values come from the CPU's plain functions.
#include "cache/weights/device_kernels.h"

#include "cache/weights/checksum.h"
#include "cache/weights/quantise.h"
#include "tests/kernels/copy_only_device.h"
#include "tests/kernels/reference.h"

#include <gmock/gmock.h>

namespace berth {
namespace {

using test::Draw;
using test::draw_matrix;
using test::Matrix;
using test::Random;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class KernelContract : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        if (is("copies")) {
            device_ = std::make_unique<test::CopyOnlyDevice>();
        } else {
            auto opened = open_device(GetParam());
            if (!opened && opened.error().code == ErrorCode::kUnsupported)
                GTEST_SKIP() << "no " << GetParam() << " device here: " << opened.error().message;
            ASSERT_TRUE(opened) << opened.error().message;
            device_ = std::move(*opened);
        }
        auto made = DeviceKernels::create(*device_, 4);
        ASSERT_TRUE(made) << made.error().message;
        kernels_ = std::move(*made);
    }
    bool is(const char* backend) const { return std::string(GetParam()) == backend; }

    Mapping on_device(const std::vector<std::byte>& bytes) {
        auto buffer = device_->create_device_buffer(bytes.size() + 1);
        EXPECT_TRUE(buffer) << (buffer ? "" : buffer.error().message);
        EXPECT_TRUE(device_->copy_to_device(buffer->data(), bytes.data(), bytes.size()));
        return std::move(*buffer);
    }
    template <typename T>
    std::vector<T> back(const std::byte* from, size_t count) {
        std::vector<T> copy(count);
        EXPECT_TRUE(device_->copy_to_host(reinterpret_cast<std::byte*>(copy.data()), from,
                                          count * sizeof(T)));
        return copy;
    }

    // Sends a slice of columns through a staging buffer on the device, as a loader does, and
    // compares with the CPU's result on the slice.
    void expect_slice(const Matrix& from, uint64_t first_column, uint64_t columns, int lane) {
        uint64_t pitch = columns * from.size();
        auto ring = device_->create_host_buffer(from.bytes.size());
        ASSERT_TRUE(ring) << ring.error().message;
        std::memcpy(ring->mapping.data(), from.bytes.data(), from.bytes.size());
        auto staging = device_->create_device_buffer(from.rows * pitch);
        auto fp8 = device_->create_device_buffer(from.rows * columns);
        uint64_t scales = scale_count(from.rows, columns);
        auto scales_at = device_->create_device_buffer(scales * sizeof(float));
        ASSERT_TRUE(staging && fp8 && scales_at);
        ASSERT_TRUE(device_->start_copy_2d_to_device(
            lane, staging->data(), pitch, ring->mapping.data() + first_column * from.size(),
            from.pitch, pitch, from.rows));
        QuantiseJob job{from.dtype,
                        staging->data(),
                        pitch,
                        from.rows,
                        columns,
                        fp8->data(),
                        scales_at->data(),
                        static_cast<uint32_t>(lane)};
        Status started = kernels_->start_quantise(lane, job);
        ASSERT_TRUE(started) << started.error().message;
        ASSERT_TRUE(device_->wait_lane(lane));

        std::vector<std::byte> expected(from.rows * columns);
        std::vector<float> expected_scales(scales);
        auto non_finite = quantise_rows(from.dtype, from.at(0, first_column), from.pitch, from.rows,
                                        columns, expected.data(), expected_scales.data());
        ASSERT_TRUE(non_finite) << non_finite.error().message;
        expected_non_finite_[static_cast<size_t>(lane)] += *non_finite;
        EXPECT_TRUE(back<std::byte>(fp8->data(), expected.size()) == expected);
        auto found_scales = back<float>(scales_at->data(), scales);
        EXPECT_EQ(std::memcmp(found_scales.data(), expected_scales.data(), scales * sizeof(float)),
                  0);
    }

    std::unique_ptr<Device> device_;
    std::unique_ptr<DeviceKernels> kernels_;
    std::vector<uint64_t> expected_non_finite_ = std::vector<uint64_t>(4);
};

INSTANTIATE_TEST_SUITE_P(Backends, KernelContract, ::testing::Values("host-0", "copies", "cuda"),
                         [](const auto& backend) {
                             return std::string(backend.param).substr(0, 4);
                         });

TEST_P(KernelContract, SaysWhereTheWorkIsDone) {
    if (is("host-0"))
        EXPECT_THAT(kernels_->place(), HasSubstr("in place"));
    if (is("copies"))
        EXPECT_THAT(kernels_->place(), HasSubstr("the device runs no kernels"));
    EXPECT_EQ(kernels_->on_device(), is("cuda") && kernels_->place() == "kernels on the device");
    EXPECT_EQ(device_->capabilities().runs_kernels, is("cuda"));
}

TEST_P(KernelContract, SlicesAreQuantisedAsTheCpuDoesAndCountedEachOnItsOwn) {
    Random random;
    int lane = 0;
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
        for (Draw draw : test::kDraws)
            for (auto [rows, columns] : {std::pair<uint64_t, uint64_t>{256, 640}, {300, 261}}) {
                Matrix from = draw_matrix(random, dtype, rows, columns, draw);
                expect_slice(from, 0, columns, lane);
                expect_slice(from, 128, columns - 128, (lane + 1) % 3);
                lane = (lane + 1) % 3;
            }
    // More than one piece of work on a CPU.
    expect_slice(draw_matrix(random, DType::kBF16, 2000, 1000, Draw::kWeights), 0, 1000, 0);
    auto counted = kernels_->non_finite();
    ASSERT_TRUE(counted) << counted.error().message;
    EXPECT_EQ(*counted, expected_non_finite_);
    EXPECT_GT((*counted)[1], 0U);
    EXPECT_EQ((*counted)[3], 0U);
}

TEST_P(KernelContract, EmptyWorkIsDoneAtOnce) {
    QuantiseJob job;
    ASSERT_TRUE(kernels_->start_quantise(0, job));
    EXPECT_THAT(kernels_->non_finite().value(), ElementsAre(0, 0, 0, 0));
    EXPECT_TRUE(kernels_->hash_blocks({}).value().empty());
    std::vector<DeviceExtent> nothing(3);
    EXPECT_TRUE(kernels_->hash_blocks(nothing).value().empty());
}

TEST_P(KernelContract, RefusesInWords) {
    Mapping buffer = on_device(std::vector<std::byte>(4096));
    QuantiseJob job{DType::kI32, buffer.data(), 16, 1, 4, buffer.data(), buffer.data(), 0};
    EXPECT_THAT(kernels_->start_quantise(0, job).error().message, HasSubstr("I32"));
    job.from = DType::kF32;
    job.counter = 4;
    EXPECT_THAT(kernels_->start_quantise(0, job).error().message, HasSubstr("counter 4"));
    job.counter = 0;
    job.scales = buffer.data() + 2;
    EXPECT_THAT(kernels_->start_quantise(0, job).error().message, HasSubstr("multiple of 4"));
    DeviceExtent odd{buffer.data() + 8, 100};
    EXPECT_THAT(kernels_->hash_blocks(std::span(&odd, 1)).error().message,
                HasSubstr("multiple of 16"));
}

// Every length at which the algorithm takes another way, and blocks with odd ends.
TEST_P(KernelContract, HashesOfBlocksAreXxh3WhateverTheirLengths) {
    std::vector<uint64_t> sizes = {0,    1,    3,     4,     8,     9,      16,     17,
                                   128,  129,  240,   241,   255,   256,    257,    320,
                                   321,  1023, 1024,  1025,  1087,  1088,   1089,   2048,
                                   4097, 0,    65535, 65536, 65537, 131072, 131312, 131313};
    Random random;
    for (int more = 0; more < 100; ++more)
        sizes.push_back(random.next() % 200000);
    sizes.push_back((uint64_t{40} << 20) + 77);
    uint64_t total = 0;
    for (uint64_t size : sizes)
        total += (size + 15) / 16 * 16;
    std::vector<std::byte> bytes(total);
    for (size_t at = 0; at < bytes.size(); at += 8) {
        uint64_t word = random.next();
        std::memcpy(bytes.data() + at, &word, 8);
    }
    Mapping buffer = on_device(bytes);
    std::vector<DeviceExtent> extents;
    std::vector<uint64_t> expected;
    uint64_t at = 0;
    for (uint64_t size : sizes) {
        extents.push_back({buffer.data() + at, size});
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
}

TEST_P(KernelContract, AFlippedBitChangesItsBlocksHashAlone) {
    std::vector<std::byte> bytes(10 * kChecksumBlockBytes + 1000, std::byte{7});
    Mapping buffer = on_device(bytes);
    DeviceExtent all{buffer.data(), bytes.size()};
    auto before = kernels_->hash_blocks(std::span(&all, 1)).value();
    for (uint64_t at : {uint64_t{0}, 4 * kChecksumBlockBytes + 12345, bytes.size() - 1}) {
        std::byte flipped = bytes[at] ^ std::byte{0x40};
        ASSERT_TRUE(device_->copy_to_device(buffer.data() + at, &flipped, 1));
        auto after = kernels_->hash_blocks(std::span(&all, 1)).value();
        ASSERT_TRUE(device_->copy_to_device(buffer.data() + at, &bytes[at], 1));
        for (size_t block = 0; block < before.size(); ++block)
            EXPECT_EQ(before[block] == after[block], block != at / kChecksumBlockBytes) << block;
    }
}

} // namespace
} // namespace berth
