// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

namespace berth {

// `id` is a UUID ("GPU-...", "MIG-...") or "cuda" for the first visible GPU, whose UUID becomes the
// device's id.
Result<std::unique_ptr<Device>> open_cuda_device(const std::string& id);

} // namespace berth
