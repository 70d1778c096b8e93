// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/cuda_driver.h"

#include "cache/memory/cuda_entries.h"

#include <fmt/format.h>

namespace berth {

namespace {

void load_functions(CudaEntries& from, CudaDriver& into) {
    from.need(into.init, "cuInit");
    from.need(into.driver_get_version, "cuDriverGetVersion");
    from.need(into.get_error_name, "cuGetErrorName");
    from.need(into.device_get_count, "cuDeviceGetCount");
    from.need(into.device_get, "cuDeviceGet");
    from.need(into.device_get_name, "cuDeviceGetName");
    from.need(into.device_get_uuid, "cuDeviceGetUuid");
    from.need(into.device_get_attribute, "cuDeviceGetAttribute");
    from.need(into.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
    from.need(into.primary_ctx_release, "cuDevicePrimaryCtxRelease");
    from.need(into.ctx_get_current, "cuCtxGetCurrent");
    from.need(into.ctx_set_current, "cuCtxSetCurrent");
    from.need(into.ctx_synchronize, "cuCtxSynchronize");
    from.need(into.mem_get_info, "cuMemGetInfo");
    from.need(into.mem_granularity, "cuMemGetAllocationGranularity");
    from.need(into.mem_create, "cuMemCreate");
    from.need(into.mem_release, "cuMemRelease");
    from.need(into.mem_address_reserve, "cuMemAddressReserve");
    from.need(into.mem_address_free, "cuMemAddressFree");
    from.need(into.mem_map, "cuMemMap");
    from.need(into.mem_unmap, "cuMemUnmap");
    from.need(into.mem_set_access, "cuMemSetAccess");
    from.need(into.mem_export, "cuMemExportToShareableHandle");
    from.need(into.mem_import, "cuMemImportFromShareableHandle");
    from.need(into.mem_host_register, "cuMemHostRegister");
    from.need(into.mem_host_unregister, "cuMemHostUnregister");
    from.need(into.memcpy_to_device, "cuMemcpyHtoDAsync");
    from.need(into.memcpy_to_host, "cuMemcpyDtoHAsync");
    from.need(into.stream_create, "cuStreamCreate");
    from.need(into.stream_destroy, "cuStreamDestroy");
    from.need(into.stream_synchronize, "cuStreamSynchronize");
    from.need(into.memcpy_2d, "cuMemcpy2DAsync");
    from.need(into.mem_alloc, "cuMemAlloc");
    from.need(into.mem_free, "cuMemFree");
    from.need(into.module_load_data, "cuModuleLoadData");
    from.need(into.module_unload, "cuModuleUnload");
    from.need(into.module_get_function, "cuModuleGetFunction");
    from.need(into.launch_kernel, "cuLaunchKernel");
}

Result<CudaDriver> load_driver() {
    BERTH_ASSIGN(CudaEntries entries, CudaEntries::open());
    CudaDriver driver;
    load_functions(entries, driver);
    if (entries.missing() != nullptr)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("the NVIDIA driver has no {}: 525 (CUDA 12.0) or newer is needed",
                                entries.missing()),
                    "CudaDriverTooOld");
    CUresult code = driver.init(0);
    if (code != CUDA_SUCCESS) {
        Error error = driver.failed(code, "cuInit(0)").value();
        error.code = ErrorCode::kUnsupported;
        error.reason = "NoCudaDevice";
        return fail(std::move(error));
    }
    return driver;
}

} // namespace

tl::unexpected<Error> CudaDriver::failed(CUresult code, std::string call) const {
    const char* name = nullptr;
    if (get_error_name == nullptr || get_error_name(code, &name) != CUDA_SUCCESS)
        name = nullptr;
    auto number = static_cast<int>(code);
    return fail(
        Error{code == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
              fmt::format("{}: {}", call,
                          name != nullptr ? std::string(name) : fmt::format("CUresult {}", number)),
              {},
              number});
}

Result<const CudaDriver*> cuda_driver() {
    static const Result<CudaDriver> driver = load_driver();
    if (!driver)
        return fail(driver.error());
    return &*driver;
}

Result<std::shared_ptr<CudaContext>> CudaContext::retain(const CudaDriver* driver,
                                                         CUdevice device) {
    CUcontext context = nullptr;
    CUresult code = driver->primary_ctx_retain(&context, device);
    if (code != CUDA_SUCCESS)
        return driver->failed(code, fmt::format("cuDevicePrimaryCtxRetain(device {})", device));
    return std::shared_ptr<CudaContext>(new CudaContext(driver, device, context));
}

CudaContext::~CudaContext() {
    driver_->primary_ctx_release(device_);
}

Status CudaContext::make_current() const {
    CUcontext current = nullptr;
    CUresult code = driver_->ctx_get_current(&current);
    if (code == CUDA_SUCCESS && current == context_)
        return {};
    code = driver_->ctx_set_current(context_);
    if (code != CUDA_SUCCESS)
        return driver_->failed(code, fmt::format("cuCtxSetCurrent(device {})", device_));
    return {};
}

Status CudaContext::synchronize() const {
    BERTH_TRY(make_current());
    CUresult code = driver_->ctx_synchronize();
    if (code != CUDA_SUCCESS)
        return driver_->failed(code, fmt::format("cuCtxSynchronize(device {})", device_));
    return {};
}

} // namespace berth
