// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/memory/host_backed_device.h"

#include <vector>

namespace berth::test {

// A device that the CPU may not address and that runs no kernels: only copies reach its memory.
// Made of a host device, with all that Device itself provides left as it is. Copies of a lane
// happen when it is waited for.
class CopyOnlyDevice final : public testing::HostBackedDevice {
  public:
    Status start_copy_to_device(int lane, std::byte* device, const std::byte* host,
                                uint64_t bytes) override {
        lanes_[lane].push_back({device, host, bytes});
        return {};
    }
    Status wait_lane(int lane) override {
        for (const Copy& copy : lanes_[lane])
            BERTH_TRY(host_->copy_to_device(copy.device, copy.host, copy.bytes));
        lanes_[lane].clear();
        return {};
    }
    Status synchronize() override {
        for (int lane = 0; lane < kLanes; ++lane)
            BERTH_TRY(wait_lane(lane));
        return {};
    }

  private:
    struct Copy {
        std::byte* device;
        const std::byte* host;
        uint64_t bytes;
    };
    std::vector<Copy> lanes_[kLanes];
};

} // namespace berth::test
