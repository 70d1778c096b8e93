// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/cuda_queue.h"
#include "engine_shim/reference/fast/fast_runner.h"
#include "engine_shim/reference/main/options.h"
#include "engine_shim/reference/model/kv_cache.h"
#include "engine_shim/reference/model/model_config.h"
#include "engine_shim/reference/model/weights.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>

namespace berth::engine {

// How an engine computes: by the fast path, or, with the reason, by torch's operations alone.
struct ComputePlan {
    std::string why_plain; // empty: fast
    fast::Dimensions dims;
    fast::FastLimits limits;
    fast::FastOptions options;
    uint64_t scratch_bytes = 0; // of device memory, what steps are computed in

    bool is_fast() const { return why_plain.empty(); }
};

// `context_tokens`: what the longest sequence may have. Unsupported when the options ask for the
// fast path and it does not compute this.
Result<ComputePlan> plan_compute(const Options& options, const ModelConfig& config,
                                 const DecoderWeights& weights, uint64_t context_tokens);

// The part of start_fast() that needs neither weights nor memory, begun on a thread of its own.
// Nothing where the fast path is out of the question.
using FastBeginning = std::future<Result<fast::CudaQueueRest>>;
FastBeginning begin_fast(const Options& options, bool on_gpu);

// Whether the class has to give way, and at what word the device sees it (Client::gate_word).
struct GivesWay {
    bool ever = false;
    const std::atomic<uint32_t>* word = nullptr;
};

// `scratch` has plan.scratch_bytes and may be given memory later, before the first step.
Result<std::unique_ptr<fast::FastRunner>>
start_fast(const ComputePlan& plan, const ModelConfig& config, const DecoderWeights& weights,
           const KvCache& cache, std::byte* scratch, GivesWay gives_way, FastBeginning begun);

} // namespace berth::engine
