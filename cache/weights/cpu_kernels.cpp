// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/cpu_kernels.h"

#include "cache/weights/checksum.h"
#include "cache/weights/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

namespace berth {

namespace {

constexpr uint64_t kThreadsMax = 16;
constexpr uint64_t kPieceBytes = uint64_t{1} << 20; // of one thread's turn
constexpr uint64_t kCopyBytes = uint64_t{16} << 20; // of host memory that a copy goes through

// Calls `work` with 0..count-1 on as many threads as there are cores, this one among them.
void for_all(uint64_t count, const std::function<void(uint64_t)>& work) {
    uint64_t cores = std::clamp<uint64_t>(std::thread::hardware_concurrency(), 1, kThreadsMax);
    std::atomic<uint64_t> next = 0;
    auto run = [&] {
        for (uint64_t index = next++; index < count; index = next++)
            work(index);
    };
    std::vector<std::jthread> others;
    for (uint64_t thread = 1; thread < std::min(cores, count); ++thread)
        others.emplace_back(run);
    run();
}

// hash_blocks() over `bytes`, which start at a block's start, shared out in pieces.
void hash_in_parallel(std::span<const std::byte> bytes, std::span<uint64_t> hashes) {
    uint64_t pieces = (bytes.size() + kPieceBytes - 1) / kPieceBytes;
    for_all(pieces, [&](uint64_t piece) {
        auto part = bytes.subspan(piece * kPieceBytes,
                                  std::min(kPieceBytes, bytes.size() - piece * kPieceBytes));
        hash_blocks(part, hashes.subspan(piece * (kPieceBytes / kChecksumBlockBytes),
                                         checksum_blocks(part.size())));
    });
}

// Quantises memory that the CPU may address, shared out in whole bands.
Result<uint64_t> quantise_in_parallel(const QuantiseJob& job) {
    uint64_t row_bytes = job.columns * bits_of(job.from) / 8;
    uint64_t bands = std::max<uint64_t>(1, kPieceBytes / (kQuantBlock * row_bytes));
    uint64_t rows = bands * kQuantBlock;
    std::atomic<uint64_t> non_finite = 0;
    auto* scales = reinterpret_cast<float*>(job.scales);
    for_all((job.row_count + rows - 1) / rows, [&](uint64_t piece) {
        uint64_t first = piece * rows;
        // check_job() has seen to the conditions.
        non_finite += quantise_rows(job.from, job.rows + first * job.pitch_bytes, job.pitch_bytes,
                                    std::min(rows, job.row_count - first), job.columns,
                                    job.fp8 + first * job.columns,
                                    scales + first / kQuantBlock * quant_blocks(job.columns))
                          .value();
    });
    return non_finite.load();
}

class InPlaceKernels final : public DeviceKernels {
  public:
    explicit InPlaceKernels(uint32_t counters) : counters_(counters) {}
    bool on_device() const override { return false; }
    const std::string& place() const override { return place_; }

    Status start_quantise(int, const QuantiseJob& job) override {
        BERTH_TRY(check_job(job, counters_.size()));
        if (job.row_count == 0 || job.columns == 0)
            return {};
        BERTH_ASSIGN(uint64_t non_finite, quantise_in_parallel(job));
        counters_[job.counter] += non_finite;
        return {};
    }
    Result<std::vector<uint64_t>> non_finite() override { return counters_; }

    // Small extents are many in a model: all pieces of all extents are shared out together.
    Result<std::vector<uint64_t>> hash_blocks(std::span<const DeviceExtent> extents) override {
        BERTH_TRY(check_extents(extents));
        struct Piece {
            std::span<const std::byte> bytes;
            uint64_t first_hash;
        };
        std::vector<Piece> pieces;
        uint64_t count = 0;
        for (const DeviceExtent& extent : extents) {
            for (uint64_t done = 0; done < extent.bytes; done += kPieceBytes)
                pieces.push_back({{extent.data + done, std::min(kPieceBytes, extent.bytes - done)},
                                  count + done / kChecksumBlockBytes});
            count += checksum_blocks(extent.bytes);
        }
        std::vector<uint64_t> hashes(count);
        for_all(pieces.size(), [&](uint64_t index) {
            const Piece& piece = pieces[index];
            berth::hash_blocks(
                piece.bytes,
                std::span(hashes).subspan(piece.first_hash, checksum_blocks(piece.bytes.size())));
        });
        return hashes;
    }

  private:
    std::string place_ = fmt::format("the CPU, in place ({})", quantise_variant());
    std::vector<uint64_t> counters_;
};

class CopyingKernels final : public DeviceKernels {
  public:
    CopyingKernels(Device& device, uint32_t counters, std::string why)
        : device_(device), counters_(counters),
          place_(fmt::format("the CPU, through copies ({}): {}", quantise_variant(), why)) {}
    bool on_device() const override { return false; }
    const std::string& place() const override { return place_; }

    Status start_quantise(int lane, const QuantiseJob& job) override {
        BERTH_TRY(check_job(job, counters_.size()));
        if (job.row_count == 0 || job.columns == 0)
            return {};
        BERTH_TRY(device_.wait_lane(lane)); // the rows may be on their way
        uint64_t rows = std::max<uint64_t>(1, kCopyBytes / (kQuantBlock * job.pitch_bytes + 1));
        for (uint64_t row = 0; row < job.row_count; row += rows * kQuantBlock)
            BERTH_TRY(quantise_part(job, row, std::min(rows * kQuantBlock, job.row_count - row)));
        return {};
    }
    Result<std::vector<uint64_t>> non_finite() override { return counters_; }

    Result<std::vector<uint64_t>> hash_blocks(std::span<const DeviceExtent> extents) override {
        BERTH_TRY(check_extents(extents));
        BERTH_TRY(device_.wait_lane(0));
        if (!buffer_.mapping) {
            BERTH_ASSIGN(buffer_, device_.create_host_buffer(kCopyBytes));
        }
        std::byte* copy = buffer_.mapping.data();
        std::vector<uint64_t> hashes;
        for (const DeviceExtent& extent : extents)
            for (uint64_t done = 0; done < extent.bytes; done += kCopyBytes) {
                uint64_t piece = std::min(kCopyBytes, extent.bytes - done);
                BERTH_TRY(device_.copy_to_host(copy, extent.data + done, piece));
                size_t first = hashes.size();
                hashes.resize(first + checksum_blocks(piece));
                hash_in_parallel({copy, piece}, std::span(hashes).subspan(first));
            }
        return hashes;
    }

  private:
    Status quantise_part(const QuantiseJob& job, uint64_t row, uint64_t rows) {
        uint64_t row_bytes = job.columns * bits_of(job.from) / 8;
        std::vector<std::byte> copy((rows - 1) * job.pitch_bytes + row_bytes);
        std::vector<std::byte> fp8(rows * job.columns);
        std::vector<float> scales(scale_count(rows, job.columns));
        BERTH_TRY(device_.copy_to_host(copy.data(), job.rows + row * job.pitch_bytes, copy.size()));
        QuantiseJob part = job;
        part.rows = copy.data();
        part.row_count = rows;
        part.fp8 = fp8.data();
        part.scales = reinterpret_cast<std::byte*>(scales.data());
        BERTH_ASSIGN(uint64_t non_finite, quantise_in_parallel(part));
        counters_[job.counter] += non_finite;
        BERTH_TRY(device_.copy_to_device(job.fp8 + row * job.columns, fp8.data(), fp8.size()));
        uint64_t scales_at = row / kQuantBlock * quant_blocks(job.columns) * sizeof(float);
        return device_.copy_to_device(job.scales + scales_at, part.scales,
                                      scales.size() * sizeof(float));
    }

    Device& device_;
    HostBuffer buffer_;
    std::vector<uint64_t> counters_;
    std::string place_;
};

} // namespace

std::unique_ptr<DeviceKernels> kernels_in_place(uint32_t counters) {
    return std::make_unique<InPlaceKernels>(counters);
}

std::unique_ptr<DeviceKernels> kernels_by_copies(Device& device, uint32_t counters,
                                                 std::string why) {
    return std::make_unique<CopyingKernels>(device, counters, std::move(why));
}

Status check_job(const QuantiseJob& job, uint64_t counters) {
    BERTH_TRY(check_quantise(job.from, job.rows, job.pitch_bytes, job.row_count, job.columns));
    if (reinterpret_cast<uintptr_t>(job.scales) % sizeof(float) != 0)
        return fail(ErrorCode::kInvalidArgument, "scales must lie at a multiple of 4 bytes");
    if (job.counter >= counters)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("counter {} was asked for, there are {}", job.counter, counters));
    return {};
}

Status check_extents(std::span<const DeviceExtent> extents) {
    for (const DeviceExtent& extent : extents)
        if (reinterpret_cast<uintptr_t>(extent.data) % 16 != 0)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("bytes at {:#x} are to be hashed: expected a multiple of 16",
                                    reinterpret_cast<uintptr_t>(extent.data)));
    return {};
}

} // namespace berth
