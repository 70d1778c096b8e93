// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cuda.h>

#include <string>

namespace berth::engine::fast {

// The driver functions that the fast path calls, and the few of cuBLAS, fetched at run time from
// what libtorch_cuda has brought in: one binary runs with and without a GPU.
struct CudaApi {
    decltype(&::cuCtxSetCurrent) ctx_set_current = nullptr;
    decltype(&::cuDeviceGet) device_get = nullptr;
    decltype(&::cuDevicePrimaryCtxRetain) primary_ctx_retain = nullptr;
    decltype(&::cuDevicePrimaryCtxRelease) primary_ctx_release = nullptr;
    decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
    decltype(&::cuGetErrorName) get_error_name = nullptr;
    decltype(&::cuModuleLoadData) module_load_data = nullptr;
    decltype(&::cuModuleUnload) module_unload = nullptr;
    decltype(&::cuModuleGetFunction) module_get_function = nullptr;
    decltype(&::cuFuncSetAttribute) func_set_attribute = nullptr;
    decltype(&::cuLaunchKernelEx) launch_kernel = nullptr;
    decltype(&::cuMemHostAlloc) host_alloc = nullptr;
    decltype(&::cuMemFreeHost) host_free = nullptr;
    decltype(&::cuMemcpyHtoDAsync) copy_in = nullptr;
    decltype(&::cuMemcpyDtoHAsync) copy_out = nullptr;
    decltype(&::cuStreamCreate) stream_create = nullptr;
    decltype(&::cuStreamDestroy) stream_destroy = nullptr;
    decltype(&::cuStreamSynchronize) stream_synchronize = nullptr;
    decltype(&::cuStreamBeginCapture) begin_capture = nullptr;
    decltype(&::cuStreamEndCapture) end_capture = nullptr;
    decltype(&::cuGraphInstantiateWithFlags) graph_instantiate = nullptr;
    decltype(&::cuGraphLaunch) graph_launch = nullptr;
    decltype(&::cuGraphExecDestroy) graph_exec_destroy = nullptr;
    decltype(&::cuGraphDestroy) graph_destroy = nullptr;

    // Null with a driver before 12.3: for graphs that look at the gate.
    decltype(&::cuGraphCreate) graph_create = nullptr;
    decltype(&::cuGraphAddKernelNode) graph_add_kernel = nullptr;
    CUresult (*graph_add_node)(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*,
                               size_t, CUgraphNodeParams*) = nullptr;
    decltype(&::cuGraphConditionalHandleCreate) conditional_create = nullptr;
    decltype(&::cuStreamBeginCaptureToGraph) begin_capture_to = nullptr;
    decltype(&::cuMemHostRegister) host_register = nullptr;
    decltype(&::cuMemHostUnregister) host_unregister = nullptr;
    decltype(&::cuMemHostGetDevicePointer) host_device_pointer = nullptr;

    // cuBLAS, whose header is not needed for these.
    using BlasHandle = void*;
    int (*blas_create)(BlasHandle*) = nullptr;
    int (*blas_destroy)(BlasHandle) = nullptr;
    int (*blas_set_stream)(BlasHandle, CUstream) = nullptr;
    int (*blas_set_workspace)(BlasHandle, void*, size_t) = nullptr;
    int (*blas_gemm)(BlasHandle, int, int, int, int, int, const void*, const void*, int, int,
                     const void*, int, int, const void*, void*, int, int, int, int) = nullptr;

    Status check(CUresult code, const char* call) const;
};

// Once a process. Unsupported where there is no driver, or no cuBLAS beside libtorch.
Result<const CudaApi*> cuda_api();

} // namespace berth::engine::fast
