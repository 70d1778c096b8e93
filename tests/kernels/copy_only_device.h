// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

#include <vector>

namespace berth::test {

// A device that the CPU may not address and that runs no kernels: only copies reach its memory.
// Made of a host device, with all that Device itself provides left as it is. Copies of a lane
// happen when it is waited for.
class CopyOnlyDevice final : public Device {
  public:
    CopyOnlyDevice() : host_(std::move(*open_device("host-0"))) {
        capabilities_ = host_->capabilities();
        capabilities_.kind = DeviceKind::kCuda;
        capabilities_.cpu_addressable = false;
    }
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
    Status copy_to_device(std::byte* device, const std::byte* host, uint64_t bytes) override {
        return host_->copy_to_device(device, host, bytes);
    }
    Status copy_to_host(std::byte* host, const std::byte* device, uint64_t bytes) override {
        return host_->copy_to_host(host, device, bytes);
    }
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
    Result<DeviceMemory> memory() override { return host_->memory(); }

  private:
    struct Copy {
        std::byte* device;
        const std::byte* host;
        uint64_t bytes;
    };
    std::unique_ptr<Device> host_;
    DeviceCapabilities capabilities_;
    std::vector<Copy> lanes_[kLanes];
};

} // namespace berth::test
