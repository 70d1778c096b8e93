// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/cuda_vmm.h"

#include <span>

// What the cuda backend needs for kernels beside its segments: loaded code, scratch memory, copies
// of rows. The calls make the context current where they need it.
namespace berth {

// Unsupported when the image holds no code for the context's GPU.
Result<std::unique_ptr<KernelModule>> load_cuda_kernels(const SharedContext& context,
                                                        std::span<const std::byte> image);
Result<Mapping> create_cuda_buffer(const SharedContext& context, uint64_t bytes);

struct CopyOfRows {
    std::byte* device = nullptr;
    uint64_t device_pitch = 0;
    const std::byte* host = nullptr;
    uint64_t host_pitch = 0;
    uint64_t width = 0;
    uint64_t height = 0;
};
// `stream` belongs to the context that is current.
Status start_cuda_copy_2d(const CudaDriver& driver, CUstream stream, const CopyOfRows& copy);

} // namespace berth
