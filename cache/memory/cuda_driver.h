// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cuda.h>

#include <memory>
#include <string>
#include <string_view>

namespace berth {

// The driver functions that the cuda backend calls, fetched from libcuda at run time, so that one
// binary runs on machines with and without a GPU. Types come from cuda.h; nothing is linked.
struct CudaDriver {
    decltype(&::cuInit) init = nullptr;
    decltype(&::cuDriverGetVersion) driver_get_version = nullptr;
    decltype(&::cuGetErrorName) get_error_name = nullptr;
    decltype(&::cuDeviceGetCount) device_get_count = nullptr;
    decltype(&::cuDeviceGet) device_get = nullptr;
    decltype(&::cuDeviceGetName) device_get_name = nullptr;
    decltype(&::cuDeviceGetUuid) device_get_uuid = nullptr;
    decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
    decltype(&::cuDevicePrimaryCtxRetain) primary_ctx_retain = nullptr;
    decltype(&::cuDevicePrimaryCtxRelease) primary_ctx_release = nullptr;
    decltype(&::cuCtxGetCurrent) ctx_get_current = nullptr;
    decltype(&::cuCtxSetCurrent) ctx_set_current = nullptr;
    decltype(&::cuCtxSynchronize) ctx_synchronize = nullptr;
    decltype(&::cuMemGetInfo) mem_get_info = nullptr;
    decltype(&::cuMemGetAllocationGranularity) mem_granularity = nullptr;
    decltype(&::cuMemCreate) mem_create = nullptr;
    decltype(&::cuMemRelease) mem_release = nullptr;
    decltype(&::cuMemAddressReserve) mem_address_reserve = nullptr;
    decltype(&::cuMemAddressFree) mem_address_free = nullptr;
    decltype(&::cuMemMap) mem_map = nullptr;
    decltype(&::cuMemUnmap) mem_unmap = nullptr;
    decltype(&::cuMemSetAccess) mem_set_access = nullptr;
    decltype(&::cuMemExportToShareableHandle) mem_export = nullptr;
    decltype(&::cuMemImportFromShareableHandle) mem_import = nullptr;
    decltype(&::cuMemHostRegister) mem_host_register = nullptr;
    decltype(&::cuMemHostUnregister) mem_host_unregister = nullptr;
    decltype(&::cuMemcpyHtoDAsync) memcpy_to_device = nullptr;
    decltype(&::cuMemcpyDtoHAsync) memcpy_to_host = nullptr;
    decltype(&::cuStreamCreate) stream_create = nullptr;
    decltype(&::cuStreamDestroy) stream_destroy = nullptr;
    decltype(&::cuStreamSynchronize) stream_synchronize = nullptr;
    decltype(&::cuMemcpy2DAsync) memcpy_2d = nullptr;
    decltype(&::cuMemAlloc) mem_alloc = nullptr;
    decltype(&::cuMemFree) mem_free = nullptr;
    decltype(&::cuModuleLoadData) module_load_data = nullptr;
    decltype(&::cuModuleUnload) module_unload = nullptr;
    decltype(&::cuModuleGetFunction) module_get_function = nullptr;
    decltype(&::cuLaunchKernel) launch_kernel = nullptr;

    // "cuMemCreate(bytes 1073741824, device 0): CUDA_ERROR_OUT_OF_MEMORY": ResourceExhausted for
    // lack of memory, else kIo, with the CUresult as the source.
    tl::unexpected<Error> failed(CUresult code, std::string call) const;
};

// Opened and initialised once a process; Unsupported, with the reason, where there is no driver or
// no GPU. A first failure is kept: the driver does not come up later within one process.
Result<const CudaDriver*> cuda_driver();

// One GPU's primary context, retained. Shared by the Device and all that it handed out, since
// mappings may outlive their Device; the last one lets it go. Thread-safe.
class CudaContext {
  public:
    static Result<std::shared_ptr<CudaContext>> retain(const CudaDriver* driver, CUdevice device);
    CudaContext(const CudaContext&) = delete;
    CudaContext& operator=(const CudaContext&) = delete;
    ~CudaContext();

    const CudaDriver& driver() const { return *driver_; }
    CUdevice device() const { return device_; }
    // Every call into the driver comes after this, on the thread that makes it.
    Status make_current() const;
    // Waits until all work given to the device by this process is done.
    Status synchronize() const;

  private:
    CudaContext(const CudaDriver* driver, CUdevice device, CUcontext context)
        : driver_(driver), device_(device), context_(context) {}
    const CudaDriver* driver_;
    CUdevice device_;
    CUcontext context_;
};

} // namespace berth
