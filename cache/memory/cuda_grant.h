// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/cuda_vmm.h"

namespace berth {

// A grant on a GPU: one reservation of bytes_max, backed from its start by handles of one step
// each. The handles are private to the process: nothing of a grant can be exported.
Result<std::unique_ptr<GrantArena>> create_cuda_grant(SharedContext context, uint64_t bytes_max,
                                                      uint64_t step_bytes);

} // namespace berth
