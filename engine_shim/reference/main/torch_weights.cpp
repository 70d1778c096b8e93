// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/torch_weights.h"

#include "engine_shim/torch/tensors.h"

namespace berth::engine {

Result<WeightSource> weight_source(const WeightSet& weights, Device& device) {
    BERTH_ASSIGN(const at::Device target, torch_device(device));
    return WeightSource([&weights, target](const std::string& name) -> Result<at::Tensor> {
        BERTH_ASSIGN(const TensorView view, weights.find(name));
        return tensor_of(weights, view, target);
    });
}

} // namespace berth::engine
