// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/cuda_queue.h"

// In the place of cuda_queue.cpp where the driver's header was not found.
namespace berth::engine::fast {

Result<std::unique_ptr<Queue>> make_cuda_queue(const CudaQueueOptions&) {
    return fail(ErrorCode::kUnsupported, "this build has no cuda backend", "NoFastPath");
}

Result<CudaQueueRest> begin_cuda_queue() {
    return fail(ErrorCode::kUnsupported, "this build has no cuda backend", "NoFastPath");
}

} // namespace berth::engine::fast
