// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/client/failed_device.h"

namespace berth {

namespace {

class FailedDevice final : public Device {
  public:
    FailedDevice(std::string id, Error error) : id_(std::move(id)), error_(std::move(error)) {
        capabilities_.name = "a device that could not be opened";
        capabilities_.cpu_addressable = false;
        capabilities_.sealed_by_kernel = false;
    }
    const std::string& id() const override { return id_; }
    const DeviceCapabilities& capabilities() const override { return capabilities_; }
    Result<std::unique_ptr<WritableSegment>> create_segment(uint64_t, const std::string&) override {
        return fail(error_);
    }
    Result<Mapping> map_read_only(const Segment&) override { return fail(error_); }
    Result<std::unique_ptr<GrantArena>> create_grant(uint64_t) override { return fail(error_); }
    Result<HostBuffer> create_host_buffer(uint64_t) override { return fail(error_); }
    Status copy_to_device(std::byte*, const std::byte*, uint64_t) override { return fail(error_); }
    Status copy_to_host(std::byte*, const std::byte*, uint64_t) override { return fail(error_); }
    Status start_copy_to_device(int, std::byte*, const std::byte*, uint64_t) override {
        return fail(error_);
    }
    Status wait_lane(int) override { return fail(error_); }
    Status synchronize() override { return fail(error_); }
    Result<DeviceMemory> memory() override { return fail(error_); }

  private:
    std::string id_;
    Error error_;
    DeviceCapabilities capabilities_;
};

} // namespace

std::unique_ptr<Device> failed_device(std::string id, Error error) {
    return std::make_unique<FailedDevice>(std::move(id), std::move(error));
}

} // namespace berth
