// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/cuda_vmm.h"

#include <fmt/format.h>

#include <fcntl.h>

namespace berth {

CUmemAllocationProp vmm_properties(CUdevice device, bool exportable) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    if (exportable)
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}

Result<VmmHandle> VmmHandle::create(SharedContext context, uint64_t bytes, bool exportable) {
    BERTH_TRY(context->make_current());
    CUmemAllocationProp properties = vmm_properties(context->device(), exportable);
    CUmemGenericAllocationHandle handle = 0;
    CUresult code = context->driver().mem_create(&handle, bytes, &properties, 0);
    if (code != CUDA_SUCCESS)
        return context->driver().failed(
            code, fmt::format("cuMemCreate(bytes {}, device {})", bytes, context->device()));
    return VmmHandle(std::move(context), handle);
}

Result<VmmHandle> VmmHandle::import(SharedContext context, const UniqueFd& fd) {
    BERTH_TRY(context->make_current());
    CUmemGenericAllocationHandle handle = 0;
    auto* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
    CUresult code =
        context->driver().mem_import(&handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (code != CUDA_SUCCESS)
        return context->driver().failed(
            code, fmt::format("cuMemImportFromShareableHandle(descriptor {}, device {})", fd.get(),
                              context->device()));
    return VmmHandle(std::move(context), handle);
}

VmmHandle& VmmHandle::operator=(VmmHandle&& other) noexcept {
    if (this != &other) {
        VmmHandle old(std::move(*this));
        context_ = std::move(other.context_);
        handle_ = std::exchange(other.handle_, 0);
    }
    return *this;
}

VmmHandle::~VmmHandle() {
    if (handle_ != 0 && context_->make_current())
        context_->driver().mem_release(handle_);
}

Result<UniqueFd> VmmHandle::export_fd() const {
    BERTH_TRY(context_->make_current());
    int fd = -1;
    CUresult code =
        context_->driver().mem_export(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(code, "cuMemExportToShareableHandle");
    UniqueFd owned(fd);
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return fail_errno("marking a segment's descriptor close-on-exec");
    return owned;
}

Result<VmmReservation> VmmReservation::reserve(SharedContext context, uint64_t bytes,
                                               uint64_t alignment) {
    BERTH_TRY(context->make_current());
    CUdeviceptr at = 0;
    CUresult code = context->driver().mem_address_reserve(&at, bytes, alignment, 0, 0);
    if (code != CUDA_SUCCESS)
        return context->driver().failed(
            code, fmt::format("cuMemAddressReserve(bytes {}, alignment {})", bytes, alignment));
    return VmmReservation(std::move(context), at, bytes);
}

VmmReservation& VmmReservation::operator=(VmmReservation&& other) noexcept {
    if (this != &other) {
        VmmReservation old(std::move(*this));
        context_ = std::move(other.context_);
        at_ = std::exchange(other.at_, 0);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

VmmReservation::~VmmReservation() {
    if (at_ != 0 && context_->make_current())
        context_->driver().mem_address_free(at_, bytes_);
}

Status VmmReservation::map(uint64_t offset, uint64_t bytes, const VmmHandle& handle) const {
    BERTH_TRY(context_->make_current());
    CUresult code = context_->driver().mem_map(at_ + offset, bytes, 0, handle.get(), 0);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(
            code, fmt::format("cuMemMap(offset {}, bytes {})", offset, bytes));
    return {};
}

Status VmmReservation::unmap(uint64_t offset, uint64_t bytes) const {
    BERTH_TRY(context_->make_current());
    CUresult code = context_->driver().mem_unmap(at_ + offset, bytes);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(
            code, fmt::format("cuMemUnmap(offset {}, bytes {})", offset, bytes));
    return {};
}

Status VmmReservation::set_access(uint64_t offset, uint64_t bytes, CUmemAccess_flags flags) const {
    BERTH_TRY(context_->make_current());
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = context_->device();
    access.flags = flags;
    CUresult code = context_->driver().mem_set_access(at_ + offset, bytes, &access, 1);
    if (code != CUDA_SUCCESS)
        return context_->driver().failed(
            code, fmt::format("cuMemSetAccess(offset {}, bytes {}, {})", offset, bytes,
                              flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? "read" : "read and write"));
    return {};
}

VmmRange::~VmmRange() {
    // Unmapping under a running kernel would end the whole process's context.
    (void)context->synchronize();
    (void)reservation.unmap(0, reservation.bytes());
}

Result<std::unique_ptr<VmmRange>> VmmRange::map(const SharedContext& context,
                                                const VmmHandle& handle, uint64_t bytes,
                                                CUmemAccess_flags flags) {
    BERTH_ASSIGN(VmmReservation reservation, VmmReservation::reserve(context, bytes, 0));
    BERTH_TRY(reservation.map(0, bytes, handle));
    // From here on the range unmaps itself, also when access is refused.
    auto range = std::make_unique<VmmRange>(context, std::move(reservation));
    BERTH_TRY(range->reservation.set_access(0, bytes, flags));
    return range;
}

} // namespace berth
