// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/checkpoint/dtype.h"
#include "cache/memory/device.h"
#include "cache/weights/manifest.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace berth {

struct DeviceExtent {
    const std::byte* data = nullptr; // on the device, at a multiple of 16
    uint64_t bytes = 0;
};

// A band of rows to quantise, as quantise_rows() takes it; all addresses are the device's.
struct QuantiseJob {
    DType from = DType::kBF16;
    const std::byte* rows = nullptr;
    uint64_t pitch_bytes = 0;
    uint64_t row_count = 0;
    uint64_t columns = 0;
    std::byte* fp8 = nullptr;
    std::byte* scales = nullptr; // floats, at a multiple of 4
    uint32_t counter = 0;        // which one counts the elements that are NaN or infinite
};

// What is computed on weights where they lie, the same to the last bit everywhere: by kernels on a
// GPU; by this process's CPU threads in place on a host device; and, on a GPU for which there are
// no kernels, by the CPU through a copy in host memory. Used by the thread that uses the Device,
// which outlives it. Calls may block on the driver or for the CPU's work.
class DeviceKernels {
  public:
    // There are `counters` counters, all 0.
    static Result<std::unique_ptr<DeviceKernels>> create(Device& device, uint32_t counters = 1);
    DeviceKernels() = default;
    DeviceKernels(const DeviceKernels&) = delete;
    DeviceKernels& operator=(const DeviceKernels&) = delete;
    virtual ~DeviceKernels() = default;

    virtual bool on_device() const = 0;
    // "kernels on the device", or that the CPU does the work and why.
    virtual const std::string& place() const = 0;

    // Starts one job on a lane, in order with the lane's copies: what it reads may be a copy that
    // was started before, and must stay until wait_lane(lane) returns. Without kernels the work is
    // done on return.
    virtual Status start_quantise(int lane, const QuantiseJob& job) = 0;
    // The counters, after all that was started is done.
    virtual Result<std::vector<uint64_t>> non_finite() = 0;

    // hash_block() of each block of 64 KiB of each extent, in order; an extent's last block may be
    // shorter. Waits for the result, and for what lane 0 had to do before.
    virtual Result<std::vector<uint64_t>> hash_blocks(std::span<const DeviceExtent> extents) = 0;
};

// The checksum of each extent from what hash_blocks() said of all.
std::vector<Checksum> fold_by_extent(std::span<const DeviceExtent> extents,
                                     std::span<const uint64_t> hashes);
// Both steps: each extent's checksum, computed where it lies now.
Result<std::vector<Checksum>> checksums_of(Device& device, std::span<const DeviceExtent> extents);

} // namespace berth
