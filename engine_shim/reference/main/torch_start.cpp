// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/torch_start.h"

#include "engine_shim/torch/tensors.h"

#include <ATen/Context.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include <dlfcn.h>

namespace berth::engine {

namespace {

constexpr int64_t kFirstProductRows = 64;

// Where libtorch_cuda registers what reads the settings of its allocator. torch's header has it in
// an inline function, of which this program, with its hidden symbols, would have a copy of its own.
constexpr const char* kSettingsHook = "_ZZN3c1016CachingAllocator26AcceleratorAllocatorConfig"
                                      "19getConfigParserHookB5cxx11EvE4hook";

// Before the allocator is first used, which takes it then. Half as much again leaves room for
// fragments. What a person has set in the environment goes before it.
Status cap_allocator(uint64_t workspace_bytes, uint64_t device_bytes) {
    if (std::getenv("PYTORCH_ALLOC_CONF") != nullptr ||
        std::getenv("PYTORCH_CUDA_ALLOC_CONF") != nullptr)
        return {};
    using Hook = std::function<void(const std::string&)>;
    const auto* hook = static_cast<const Hook*>(::dlsym(RTLD_DEFAULT, kSettingsHook));
    if (hook == nullptr || !*hook)
        return fail(ErrorCode::kUnsupported,
                    "torch's memory on the GPU cannot be capped: this is not the version of torch "
                    "that the engine is made for; set PYTORCH_ALLOC_CONF="
                    "per_process_memory_fraction:F to cap it by hand",
                    "NoTorchCuda");
    const double fraction = std::min(1.0, 1.5 * static_cast<double>(workspace_bytes) /
                                              static_cast<double>(device_bytes));
    (*hook)(fmt::format("per_process_memory_fraction:{:.6f}", fraction));
    return {};
}

// The first product starts cuBLAS, whose handle goes to a pool that all threads take theirs from.
void multiply_once() {
    const c10::InferenceMode inference;
    const at::Tensor ones =
        at::ones({kFirstProductRows, kFirstProductRows},
                 at::TensorOptions().dtype(at::kBFloat16).device(at::Device(at::kCUDA, 0)));
    (void)at::matmul(ones, ones);
}

} // namespace

bool names_gpu(const std::string& device) {
    return device == "cuda" || device.starts_with("GPU-") || device.starts_with("MIG-");
}

Status preload_torch_cuda() {
    if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
        const char* why = ::dlerror();
        return fail(ErrorCode::kUnsupported, fmt::format("the NVIDIA driver cannot be opened: {}",
                                                         why != nullptr ? why : "unknown"));
    }
    return open_cuda_libraries();
}

std::jthread open_torch_early(const std::string& device) {
    if (!names_gpu(device))
        return {};
    // The dynamic loader opens one library at a time: the driver, which the caller wants next, must
    // not wait for torch. Whoever opens it again says why that fails.
    (void)::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return std::jthread([] { (void)load_cuda_libraries(); });
}

Status start_torch_cuda(uint64_t workspace_bytes, uint64_t device_bytes) {
    BERTH_TRY(load_cuda_libraries());
    try {
        BERTH_TRY(cap_allocator(workspace_bytes, device_bytes));
        at::globalContext().lazyInitDevice(at::kCUDA);
        // cuDNN's attention plans anew for every length, which costs more than the attention.
        at::globalContext().setSDPUseCuDNN(false);
        multiply_once();
    } catch (const std::exception& thrown) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("torch does not start on the GPU: {}", thrown.what()),
                    "NoTorchCuda");
    }
    return {};
}

} // namespace berth::engine
