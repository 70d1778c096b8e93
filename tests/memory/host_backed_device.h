// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

#include <memory>

namespace berth::testing {

// What the tests' devices have in common: a host device's memory behind a device that says that it
// is a GPU whose memory the CPU may not address. How copies to it are made is the subclass's.
class HostBackedDevice : public Device {
  public:
    HostBackedDevice() : host_(std::move(*open_device("host-0"))) {
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
    Result<DeviceMemory> memory() override { return host_->memory(); }

  protected:
    std::unique_ptr<Device> host_;
    DeviceCapabilities capabilities_;
};

} // namespace berth::testing
