// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/cuda_driver.h"
#include "cache/memory/device.h"

#include <memory>

// Owners of what the driver's virtual memory management hands out. None is thread-safe.
namespace berth {

using SharedContext = std::shared_ptr<CudaContext>;

CUmemAllocationProp vmm_properties(CUdevice device, bool exportable);

// A handle of physical memory. Memory that is mapped stays after its handle was released, so the
// handle is dropped as soon as nobody needs to map or export it again.
class VmmHandle {
  public:
    VmmHandle() = default;
    static Result<VmmHandle> create(SharedContext context, uint64_t bytes, bool exportable);
    static Result<VmmHandle> import(SharedContext context, const UniqueFd& fd);
    VmmHandle(VmmHandle&& other) noexcept
        : context_(std::move(other.context_)), handle_(std::exchange(other.handle_, 0)) {}
    VmmHandle& operator=(VmmHandle&& other) noexcept;
    ~VmmHandle();

    Result<UniqueFd> export_fd() const;
    CUmemGenericAllocationHandle get() const { return handle_; }

  private:
    VmmHandle(SharedContext context, CUmemGenericAllocationHandle handle)
        : context_(std::move(context)), handle_(handle) {}
    SharedContext context_;
    CUmemGenericAllocationHandle handle_ = 0;
};

// A reserved range of device addresses; what is still mapped in it is the user's to unmap first.
class VmmReservation {
  public:
    VmmReservation() = default;
    static Result<VmmReservation> reserve(SharedContext context, uint64_t bytes,
                                          uint64_t alignment);
    VmmReservation(VmmReservation&& other) noexcept
        : context_(std::move(other.context_)), at_(std::exchange(other.at_, 0)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    VmmReservation& operator=(VmmReservation&& other) noexcept;
    ~VmmReservation();

    CUdeviceptr at() const { return at_; }
    uint64_t bytes() const { return bytes_; }
    Status map(uint64_t offset, uint64_t bytes, const VmmHandle& handle) const;
    Status unmap(uint64_t offset, uint64_t bytes) const;
    Status set_access(uint64_t offset, uint64_t bytes, CUmemAccess_flags flags) const;

  private:
    VmmReservation(SharedContext context, CUdeviceptr at, uint64_t bytes)
        : context_(std::move(context)), at_(at), bytes_(bytes) {}
    SharedContext context_;
    CUdeviceptr at_ = 0;
    uint64_t bytes_ = 0;
};

// One handle mapped over a whole reservation of its own. Its end fences the device, unmaps, frees.
struct VmmRange final : Mapping::Owner {
    VmmRange(SharedContext shared, VmmReservation reserved)
        : context(std::move(shared)), reservation(std::move(reserved)) {}
    ~VmmRange() override;
    static Result<std::unique_ptr<VmmRange>> map(const SharedContext& context,
                                                 const VmmHandle& handle, uint64_t bytes,
                                                 CUmemAccess_flags flags);
    std::byte* data() const {
        return reinterpret_cast<std::byte*>(reservation.at()); // NOLINT: a device address
    }
    SharedContext context;
    VmmReservation reservation;
};

} // namespace berth
