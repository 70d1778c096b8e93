// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/client/client.h"
#include "engine_shim/reference/model/weights.h"

namespace berth::engine {

// Opens torch's CUDA half, which this program is not linked with, and caps what its allocator
// takes. Unsupported with the loader's words when it is not installed. Before any other use of a
// GPU by torch.
Status load_torch_cuda(uint64_t workspace_bytes, Device& device);

// The mapped tensors as torch sees them; `weights` outlives them all.
Result<WeightSource> weight_source(const WeightSet& weights, Device& device);

} // namespace berth::engine
