// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/cuda_api.h"

#include "cache/memory/cuda_entries.h"

#include <fmt/format.h>

#include <dlfcn.h>

namespace berth::engine::fast {

namespace {

// Of a library that is in the process already.
struct LibraryEntries {
    void* library = nullptr;
    const char* missing = nullptr;

    template <typename Function>
    void need(Function& into, const char* name) {
        into = reinterpret_cast<Function>(::dlsym(library, name));
        if (into == nullptr && missing == nullptr)
            missing = name;
    }
};

void load_driver(CudaEntries& from, CudaApi& api) {
    from.need(api.ctx_set_current, "cuCtxSetCurrent");
    from.need(api.device_get, "cuDeviceGet");
    from.need(api.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
    from.need(api.primary_ctx_release, "cuDevicePrimaryCtxRelease");
    from.need(api.device_get_attribute, "cuDeviceGetAttribute");
    from.need(api.get_error_name, "cuGetErrorName");
    from.need(api.module_load_data, "cuModuleLoadData");
    from.need(api.module_unload, "cuModuleUnload");
    from.need(api.module_get_function, "cuModuleGetFunction");
    from.need(api.func_set_attribute, "cuFuncSetAttribute");
    from.need(api.launch_kernel, "cuLaunchKernelEx");
    from.need(api.host_alloc, "cuMemHostAlloc");
    from.need(api.host_free, "cuMemFreeHost");
    from.need(api.copy_in, "cuMemcpyHtoDAsync");
    from.need(api.copy_out, "cuMemcpyDtoHAsync");
    from.need(api.stream_create, "cuStreamCreate");
    from.need(api.stream_destroy, "cuStreamDestroy");
    from.need(api.stream_synchronize, "cuStreamSynchronize");
    from.need(api.begin_capture, "cuStreamBeginCapture");
    from.need(api.end_capture, "cuStreamEndCapture");
    from.need(api.graph_instantiate, "cuGraphInstantiateWithFlags");
    from.need(api.graph_launch, "cuGraphLaunch");
    from.need(api.graph_exec_destroy, "cuGraphExecDestroy");
    from.need(api.graph_destroy, "cuGraphDestroy");
    from.want(api.graph_create, "cuGraphCreate", 12000);
    from.want(api.graph_add_kernel, "cuGraphAddKernelNode", 12000);
    from.want(api.graph_add_node, "cuGraphAddNode", 12030);
    from.want(api.conditional_create, "cuGraphConditionalHandleCreate", 12030);
    from.want(api.begin_capture_to, "cuStreamBeginCaptureToGraph", 12030);
    from.want(api.host_register, "cuMemHostRegister", 12000);
    from.want(api.host_unregister, "cuMemHostUnregister", 12000);
    from.want(api.host_device_pointer, "cuMemHostGetDevicePointer", 12000);
}

void load_blas(LibraryEntries& from, CudaApi& api) {
    from.need(api.blas_create, "cublasCreate_v2");
    from.need(api.blas_destroy, "cublasDestroy_v2");
    from.need(api.blas_set_stream, "cublasSetStream_v2");
    from.need(api.blas_set_workspace, "cublasSetWorkspace_v2");
    from.need(api.blas_gemm, "cublasGemmEx");
}

// Already in the process with libtorch_cuda, under the name of the version it was built for.
void* find_blas() {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12"})
        if (void* found = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD))
            return found;
    return nullptr;
}

Result<CudaApi> load() {
    const auto refuse = [](std::string why) {
        return fail(ErrorCode::kUnsupported, std::move(why), "NoFastPath");
    };
    Result<CudaEntries> driver = CudaEntries::open();
    if (!driver)
        return refuse(driver.error().message);
    LibraryEntries blas{find_blas()};
    if (blas.library == nullptr)
        return refuse("libtorch has not brought cuBLAS 12 or 13 into this process");
    CudaApi api;
    load_driver(*driver, api);
    load_blas(blas, api);
    if (const char* missing = driver->missing() != nullptr ? driver->missing() : blas.missing)
        return refuse(fmt::format("driver or cuBLAS has no {}", missing));
    return api;
}

} // namespace

Status CudaApi::check(CUresult code, const char* call) const {
    if (code == CUDA_SUCCESS)
        return {};
    const char* name = nullptr;
    if (get_error_name(code, &name) != CUDA_SUCCESS || name == nullptr)
        name = "an unknown error";
    return fail(Error{code == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kResourceExhausted
                                                       : ErrorCode::kInternal,
                      fmt::format("the model's step failed: {}: {}", call, name), "StepFailed",
                      static_cast<int>(code)});
}

Result<const CudaApi*> cuda_api() {
    static const Result<CudaApi> api = load();
    if (!api)
        return fail(api.error());
    return &*api;
}

} // namespace berth::engine::fast
