// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>

namespace berth::cli::bench {

// The UUID that a bench's `--device` means: its own words, or of `auto` the first GPU's. One alone:
// engines on two devices would not share it. Unsupported (NoGpu) where there is none.
Result<std::string> gpu_named(const std::string& device);

} // namespace berth::cli::bench
