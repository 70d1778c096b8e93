// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/torch_weights.h"

#include "engine_shim/torch/tensors.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace berth::engine {

Status load_torch_cuda(uint64_t workspace_bytes, Device& device) {
    BERTH_ASSIGN(const DeviceMemory memory, device.memory());
    // Read once, when the allocator is first used. Half as much again leaves room for fragments.
    const double fraction = std::min(1.0, 1.5 * static_cast<double>(workspace_bytes) /
                                              static_cast<double>(memory.total_bytes));
    ::setenv("PYTORCH_ALLOC_CONF",
             fmt::format("per_process_memory_fraction:{:.6f}", fraction).c_str(),
             /*overwrite=*/0);
    BERTH_TRY(load_cuda_libraries());
    try {
        at::globalContext().lazyInitDevice(at::kCUDA);
    } catch (const std::exception& thrown) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("torch does not start on the GPU: {}", thrown.what()),
                    "NoTorchCuda");
    }
    return {};
}

Result<WeightSource> weight_source(const WeightSet& weights, Device& device) {
    BERTH_ASSIGN(const at::Device target, torch_device(device));
    return WeightSource([&weights, target](const std::string& name) -> Result<at::Tensor> {
        BERTH_ASSIGN(const TensorView view, weights.find(name));
        return tensor_of(weights, view, target);
    });
}

} // namespace berth::engine
