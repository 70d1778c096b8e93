// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/fast_start.h"

#include "base/round.h"
#include "engine_shim/reference/fast/model_dims.h"
#include "engine_shim/torch/tensors.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::engine {

namespace {

// A closed gate is obeyed within these (what is queued at most).
constexpr fast::LookLimits kLooks{std::chrono::microseconds(450), std::chrono::microseconds(900)};
constexpr uint32_t kContextsMax = 8192; // whose keys and values are gathered at once
constexpr uint64_t kScratchUnit = uint64_t{2} << 20;

std::string why_plain(const Options& options, const ModelConfig& config,
                      const DecoderWeights& weights) {
    if (options.compute == "plain")
        return "asked for";
    if (!weights.embedding.is_cuda())
        return "no GPU";
    if (options.ranks > 1)
        return "several ranks";
    if (options.batch_invariant)
        return "batch-invariant shapes are asked for";
    return fast::why_not_fast(config, weights);
}

} // namespace

Result<ComputePlan> plan_compute(const Options& options, const ModelConfig& config,
                                 const DecoderWeights& weights, uint64_t context_tokens) {
    ComputePlan plan;
    plan.why_plain = why_plain(options, config, weights);
    if (!plan.is_fast() && options.compute == "fast")
        return fail(ErrorCode::kUnsupported,
                    fmt::format("--compute fast is not possible: {}", plan.why_plain),
                    "NoFastPath");
    if (!plan.is_fast())
        return plan;
    plan.dims = fast::dimensions_of(config, fast::has_fp8(weights));
    plan.limits.sequences = options.max_batch;
    plan.limits.chunk_rows = options.prefill_chunk;
    plan.limits.blocks_each = static_cast<uint32_t>(round_up(context_tokens, options.block_tokens) /
                                                    options.block_tokens) +
                              1;
    plan.options.graphs = options.graphs;
    plan.options.device_looks = options.look == "conditional";
    plan.scratch_bytes =
        round_up(fast::lay_out(plan.dims, plan.limits, plan.options, nullptr).bytes, kScratchUnit);
    return plan;
}

FastBeginning begin_fast(const Options& options, bool on_gpu) {
    if (!on_gpu || options.compute == "plain" || options.batch_invariant || options.ranks > 1)
        return {};
    return std::async(std::launch::async, []() -> Result<fast::CudaQueueRest> {
        BERTH_TRY(load_cuda_libraries());
        return fast::begin_cuda_queue();
    });
}

Result<std::unique_ptr<fast::FastRunner>>
start_fast(const ComputePlan& plan, const ModelConfig& config, const DecoderWeights& weights,
           const KvCache& cache, std::byte* scratch, GivesWay gives_way, FastBeginning begun) {
    const fast::Buffers buffers = fast::lay_out(plan.dims, plan.limits, plan.options, scratch);
    BERTH_ASSIGN(const fast::CudaQueueRest rest,
                 begun.valid() ? begun.get() : fast::begin_cuda_queue());
    BERTH_ASSIGN(std::unique_ptr<fast::Queue> queue, rest({buffers.library}));
    BERTH_ASSIGN(std::unique_ptr<fast::FastModel> model,
                 fast::FastModel::make({*queue, plan.dims, rope_frequencies(config, 0).inverse,
                                        fast::fast_weights(weights), fast::fast_pages(cache),
                                        scratch, plan.limits, plan.options,
                                        gives_way.ever ? kLooks : fast::LookLimits{},
                                        gives_way.word, kContextsMax}));
    return std::make_unique<fast::FastRunner>(std::move(queue), std::move(model), config.vocab,
                                              gives_way.ever);
}

} // namespace berth::engine
