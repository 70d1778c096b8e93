// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/cuda_kernels.h"

#include <fmt/format.h>

namespace berth {

namespace {

class CudaKernelModule final : public KernelModule {
  public:
    CudaKernelModule(SharedContext context, CUmodule loaded)
        : context_(std::move(context)), module_(loaded) {}
    ~CudaKernelModule() override {
        if (context_->synchronize())
            context_->driver().module_unload(module_);
    }
    Result<Function> function(const char* name) const override {
        BERTH_TRY(context_->make_current());
        CUfunction found = nullptr;
        CUresult code = context_->driver().module_get_function(&found, module_, name);
        if (code != CUDA_SUCCESS)
            return context_->driver().failed(code, fmt::format("cuModuleGetFunction({})", name));
        return Function{found};
    }

  private:
    SharedContext context_;
    CUmodule module_;
};

struct CudaBuffer final : Mapping::Owner {
    CudaBuffer(SharedContext shared, CUdeviceptr address)
        : context(std::move(shared)), at(address) {}
    ~CudaBuffer() override {
        if (context->synchronize())
            context->driver().mem_free(at);
    }
    SharedContext context;
    CUdeviceptr at;
};

} // namespace

Result<std::unique_ptr<KernelModule>> load_cuda_kernels(const SharedContext& context,
                                                        std::span<const std::byte> image) {
    if (image.empty())
        return fail(ErrorCode::kInvalidArgument, "an empty image of kernels was to be loaded");
    BERTH_TRY(context->make_current());
    CUmodule loaded = nullptr;
    CUresult code = context->driver().module_load_data(&loaded, image.data());
    if (code == CUDA_SUCCESS)
        return std::make_unique<CudaKernelModule>(context, loaded);
    Error error = context->driver()
                      .failed(code, fmt::format("cuModuleLoadData(bytes {})", image.size()))
                      .value();
    if (code == CUDA_ERROR_NO_BINARY_FOR_GPU || code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
        code == CUDA_ERROR_JIT_COMPILER_NOT_FOUND || code == CUDA_ERROR_JIT_COMPILATION_DISABLED) {
        error.code = ErrorCode::kUnsupported;
        error.reason = "NoKernels";
        error.message += ": this build's kernels have no code for this GPU; configure it with its "
                         "architecture in BERTH_CUDA_ARCHITECTURES";
    }
    return fail(std::move(error));
}

Result<Mapping> create_cuda_buffer(const SharedContext& context, uint64_t bytes) {
    if (bytes == 0)
        return fail(ErrorCode::kInvalidArgument, "a device buffer of 0 bytes was asked for");
    BERTH_TRY(context->make_current());
    CUdeviceptr at = 0;
    CUresult code = context->driver().mem_alloc(&at, bytes);
    if (code != CUDA_SUCCESS)
        return context->driver().failed(
            code, fmt::format("cuMemAlloc(bytes {}, device {})", bytes, context->device()));
    auto* data = reinterpret_cast<std::byte*>(at); // NOLINT: a device address
    return Mapping(data, bytes, std::make_unique<CudaBuffer>(context, at));
}

Status start_cuda_copy_2d(const CudaDriver& driver, CUstream stream, const CopyOfRows& copy) {
    CUDA_MEMCPY2D rows{};
    rows.srcMemoryType = CU_MEMORYTYPE_HOST;
    rows.srcHost = copy.host;
    rows.srcPitch = copy.host_pitch;
    rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.dstDevice = reinterpret_cast<CUdeviceptr>(copy.device);
    rows.dstPitch = copy.device_pitch;
    rows.WidthInBytes = copy.width;
    rows.Height = copy.height;
    CUresult code = driver.memcpy_2d(&rows, stream);
    if (code != CUDA_SUCCESS)
        return driver.failed(code, fmt::format("cuMemcpy2DAsync(to {:#x}, {} rows of {} bytes)",
                                               rows.dstDevice, copy.height, copy.width));
    return {};
}

} // namespace berth
