// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/queue.h"

#include <functional>
#include <memory>

namespace berth::engine::fast {

// One GPU, the first that this process sees, on torch's stream: what torch does and what is done
// here follow each other. Needs torch's CUDA half to be open. Unsupported, with the reason, when
// this build or this GPU has no kernels.
struct CudaQueueOptions {
    void* library_workspace = nullptr; // kLibraryBytes of device memory
};
Result<std::unique_ptr<Queue>> make_cuda_queue(const CudaQueueOptions& options);

// The same in two parts. The first loads kernels and library, which takes long and needs no memory
// yet: on any thread, beside the rest of a start. What it returns makes the queue, once.
using CudaQueueRest = std::function<Result<std::unique_ptr<Queue>>(const CudaQueueOptions&)>;
Result<CudaQueueRest> begin_cuda_queue();

// By torch's fused attention, over contexts that are gathered first.
Status attend_with_torch(Queue& queue, const ChunkAttention& attention);

} // namespace berth::engine::fast
