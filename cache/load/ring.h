// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/load/exchange.h"
#include "cache/load/stream.h"
#include "cache/weights/device_kernels.h"

#include <memory>
#include <vector>

namespace berth {

// The devices' side of the ring: takes what was read, starts the copies of its parts on each rank's
// device, turns lanes, and gives a slot back when all that was copied from it has arrived. One
// thread; everything in the job outlives it.
class RingCopier {
  public:
    static Result<RingCopier> open(const StreamJob& job, const StreamShape& shape,
                                   Exchange& exchange);

    // Starts what is ready, else waits for the oldest copy; false: there is nothing to do yet.
    Result<bool> round();
    Status settle_all();
    // After the last: all of it is on the devices, and was fit to be quantised.
    Status finish();

  private:
    static constexpr int kNoSlot = -1;
    struct Lane {
        int slot = kNoSlot;
        Mapping staging; // on the device, for what is quantised there
    };
    // Several ranks may be on one device.
    struct PerDevice {
        Device* device = nullptr;
        std::unique_ptr<DeviceKernels> kernels;
        std::vector<Lane> lanes;
        size_t next = 0;
    };

    RingCopier(const StreamJob& job, Exchange& exchange) : job_(job), exchange_(exchange) {}
    Status start(const Exchange::Work& work);
    Status start(const Tile& tile, const Placement& placement, const Exchange::Work& work);
    Status settle(PerDevice& on, size_t lane);
    Result<bool> settle_oldest();

    StreamJob job_;
    Exchange& exchange_;
    std::vector<PerDevice> devices_;
    std::vector<size_t> device_of_rank_;
    std::vector<int> uses_; // of a slot: copies from it under way
};

// The error of a tensor that cannot be quantised.
tl::unexpected<Error> not_finite(const StreamJob& job, const Tile& tile, uint64_t count);

} // namespace berth
