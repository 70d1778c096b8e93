// SPDX-License-Identifier: Apache-2.0
#include "scheduler/main/gated_verify.h"

#include "base/round.h"
#include "cache/load/verify.h"
#include "cache/weights/checksum.h"
#include "cache/weights/device_kernels.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

// Hashes the blocks of one tensor after the other, a piece at a time.
class Pieces {
  public:
    Pieces(const GateWatcher& gate, DeviceKernels& kernels, const VerifyPace& pace)
        : gate_(gate), kernels_(kernels), gate_max_(pace.gate_max),
          // Cut at whole blocks, so that the hashes are those of the tensor in one.
          piece_bytes_(round_up(std::max<uint64_t>(pace.piece_bytes, 1), kChecksumBlockBytes)) {}

    Status add(const std::byte* data, uint64_t bytes) {
        for (uint64_t at = 0; at < bytes;) {
            const uint64_t length = std::min(bytes - at, piece_bytes_ - waiting_bytes_);
            extents_.push_back({data + at, length});
            at += length;
            // A piece is full, or a tensor's end leaves less than a block of it.
            waiting_bytes_ += checksum_blocks(length) * kChecksumBlockBytes;
            if (waiting_bytes_ >= piece_bytes_)
                BERTH_TRY(run());
        }
        return {};
    }
    Result<std::vector<uint64_t>> finish() {
        BERTH_TRY(run());
        return std::move(hashes_);
    }

  private:
    Status run() {
        if (extents_.empty())
            return {};
        (void)gate_.wait(gate_max_);
        BERTH_ASSIGN(std::vector<uint64_t> more, kernels_.hash_blocks(extents_));
        hashes_.insert(hashes_.end(), more.begin(), more.end());
        extents_.clear();
        waiting_bytes_ = 0;
        return {};
    }

    const GateWatcher& gate_;
    DeviceKernels& kernels_;
    Nanoseconds gate_max_;
    uint64_t piece_bytes_;
    std::vector<DeviceExtent> extents_;
    uint64_t waiting_bytes_ = 0; // in whole blocks
    std::vector<uint64_t> hashes_;
};

} // namespace

Result<std::vector<std::string>> verify_behind(const GateWatcher& gate, Device& device,
                                               const Manifest& manifest,
                                               std::span<const Mapping> mappings, VerifyPace pace) {
    BERTH_ASSIGN(auto kernels, DeviceKernels::create(device, 0));
    return find_different(
        manifest, extents_of(mappings),
        [&](std::span<const DeviceExtent> extents) -> Result<std::vector<uint64_t>> {
            Pieces pieces(gate, *kernels, pace);
            for (const DeviceExtent& extent : extents)
                BERTH_TRY(pieces.add(extent.data, extent.bytes));
            return pieces.finish();
        });
}

} // namespace berth
