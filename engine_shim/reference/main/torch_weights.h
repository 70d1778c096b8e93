// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/client/client.h"
#include "engine_shim/reference/model/weights.h"

namespace berth::engine {

// The mapped tensors as torch sees them; `weights` outlives them all.
Result<WeightSource> weight_source(const WeightSet& weights, Device& device);

} // namespace berth::engine
