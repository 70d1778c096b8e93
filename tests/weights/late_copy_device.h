// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

namespace berth::testing {

// Forwards to a host device; says that it is a GPU and copies only when a lane is waited for.
class LateCopyDevice final : public Device {
  public:
    LateCopyDevice() : host_(std::move(*open_device("host-0"))) {
        capabilities_ = host_->capabilities();
        capabilities_.kind = DeviceKind::kCuda;
        capabilities_.cpu_addressable = false;
    }
    std::function<Status()> on_copy;

    const std::string& id() const override { return host_->id(); }
    const DeviceCapabilities& capabilities() const override { return capabilities_; }
    Result<std::unique_ptr<WritableSegment>> create_segment(uint64_t bytes,
                                                            const std::string& name) override {
        return host_->create_segment(bytes, name);
    }
    Result<Mapping> map_read_only(const Segment& segment) override {
        return host_->map_read_only(segment);
    }
    Result<std::unique_ptr<GrantArena>> create_grant(uint64_t bytes_max) override {
        return host_->create_grant(bytes_max);
    }
    Result<HostBuffer> create_host_buffer(uint64_t bytes) override {
        return host_->create_host_buffer(bytes);
    }
    Status copy_to_device(std::byte* to, const std::byte* from, uint64_t bytes) override {
        return host_->copy_to_device(to, from, bytes);
    }
    Status copy_to_host(std::byte* to, const std::byte* from, uint64_t bytes) override {
        return host_->copy_to_host(to, from, bytes);
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
        for (uint64_t row = 0; row < copy.height; ++row)
            std::memcpy(copy.to + row * copy.to_pitch, copy.from + row * copy.from_pitch,
                        copy.width);
        copy = {};
        return {};
    }
    Status synchronize() override { return {}; }
    Result<DeviceMemory> memory() override { return host_->memory(); }

  private:
    struct Copy {
        std::byte* to = nullptr;
        uint64_t to_pitch = 0;
        const std::byte* from = nullptr;
        uint64_t from_pitch = 0;
        uint64_t width = 0;
        uint64_t height = 0;
    };
    std::unique_ptr<Device> host_;
    DeviceCapabilities capabilities_;
    Copy lanes_[kLanes];
};

} // namespace berth::testing
