// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/memory/host_backed_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

namespace berth::testing {

// Forwards to a host device; says that it is a GPU and copies only when a lane is waited for.
class LateCopyDevice final : public HostBackedDevice {
  public:
    std::function<Status()> on_copy;
    std::function<Status()> on_wait; // of a lane with a copy: its failure is the wait's
    // Copies that were started and not waited for.
    int under_way() const {
        int count = 0;
        for (const Copy& copy : lanes_)
            count += copy.to != nullptr ? 1 : 0;
        return count;
    }

    Status start_copy_to_device(int lane, std::byte* to, const std::byte* from,
                                uint64_t bytes) override {
        return start_copy_2d_to_device(lane, to, bytes, from, bytes, bytes, 1);
    }
    Status start_copy_2d_to_device(int lane, std::byte* to, uint64_t to_pitch,
                                   const std::byte* from, uint64_t from_pitch, uint64_t width,
                                   uint64_t height) override {
        if (on_copy)
            BERTH_TRY(on_copy());
        EXPECT_EQ(lanes_[lane].to, nullptr) << "a copy was started on a lane that is busy";
        lanes_[lane] = {to, to_pitch, from, from_pitch, width, height};
        return {};
    }
    Status wait_lane(int lane) override {
        Copy& copy = lanes_[lane];
        Status waited;
        if (on_wait && copy.to != nullptr)
            waited = on_wait();
        for (uint64_t row = 0; row < copy.height; ++row)
            std::memcpy(copy.to + row * copy.to_pitch, copy.from + row * copy.from_pitch,
                        copy.width);
        copy = {};
        return waited;
    }
    Status synchronize() override { return {}; }

  private:
    struct Copy {
        std::byte* to = nullptr;
        uint64_t to_pitch = 0;
        const std::byte* from = nullptr;
        uint64_t from_pitch = 0;
        uint64_t width = 0;
        uint64_t height = 0;
    };
    Copy lanes_[kLanes];
};

} // namespace berth::testing
