// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/runner.h"

#include "engine_shim/reference/model/canary.h"
#include "engine_shim/reference/model/sampler.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string_view>

namespace berth::engine {

namespace {

// The one place where torch's exceptions become errors. The first line says what it was; the rest
// is its stack.
template <typename F>
auto guarded(F&& compute) -> Result<decltype(compute())> {
    try {
        const c10::InferenceMode inference;
        return compute();
    } catch (const std::exception& thrown) {
        const std::string_view text = thrown.what();
        return fail(ErrorCode::kInternal,
                    fmt::format("the model's step failed: {}", text.substr(0, text.find('\n'))),
                    "StepFailed");
    }
}

std::vector<ForwardItem> forward_items(std::span<const StepItem> items) {
    std::vector<ForwardItem> made;
    for (const StepItem& item : items)
        made.push_back({item.tokens, item.position, item.blocks, item.rope_length, item.samples});
    return made;
}

} // namespace

ModelRunner::ModelRunner(ModelConfig config, DecoderWeights weights, KvCache cache,
                         RunnerOptions options, RunnerRanks ranks)
    : config_(std::move(config)), weights_(std::move(weights)), cache_(std::move(cache)),
      options_(options), ranks_(ranks) {}

at::Tensor ModelRunner::compute_invariant(std::span<const ForwardItem> items, size_t decoding,
                                          const LayerHook& hook) const {
    std::vector<at::Tensor> rows;
    if (decoding > 0) {
        const ForwardShape shape{options_.decode_rows, options_.context_step, false};
        rows.push_back(
            forward(config_, weights_, cache_, items.first(decoding), shape, hook, ranks_.group));
        if (!rows.back().defined())
            return {};
    }
    for (const ForwardItem& item : items.subspan(decoding)) {
        const ForwardShape shape{options_.chunk_rows, options_.context_step, true};
        rows.push_back(
            forward(config_, weights_, cache_, std::span(&item, 1), shape, hook, ranks_.group));
        if (!rows.back().defined())
            return {};
    }
    return at::cat(rows, 0);
}

at::Tensor ModelRunner::compute(std::span<const StepItem> items, const LayerHook& hook) const {
    const std::vector<ForwardItem> made = forward_items(items);
    size_t decoding = 0;
    while (decoding < items.size() && items[decoding].decode)
        ++decoding;
    if (options_.batch_invariant)
        return compute_invariant(made, decoding, hook);
    return forward(config_, weights_, cache_, made, ForwardShape{}, hook, ranks_.group);
}

Result<std::optional<at::Tensor>> ModelRunner::logits(std::span<const StepItem> items,
                                                      const LayerHook& hook) {
    return guarded([&]() -> std::optional<at::Tensor> {
        at::Tensor rows = compute(items, hook);
        if (!rows.defined())
            return std::nullopt;
        return rows;
    });
}

Result<std::optional<std::vector<SampledToken>>> ModelRunner::step(std::span<const StepItem> items,
                                                                   const LayerHook& hook) {
    return guarded([&]() -> std::optional<std::vector<SampledToken>> {
        const at::Tensor rows = compute(items, hook);
        if (!rows.defined())
            return std::nullopt;
        std::vector<SampleRow> wanted;
        for (const StepItem& item : items) {
            if (item.samples)
                wanted.push_back({item.params, item.sample_index});
        }
        return wanted.empty() ? std::vector<SampledToken>() : sample(rows, wanted);
    });
}

Status ModelRunner::copy_blocks(std::span<const BlockMove> moves) {
    if (ranks_.others != nullptr && !moves.empty())
        BERTH_TRY(ranks_.others->copy_blocks(moves));
    const auto copied = guarded([&] {
        // Neighbours that stay neighbours go as one piece.
        for (size_t begin = 0; begin < moves.size();) {
            size_t end = begin + 1;
            while (end < moves.size() && moves[end].from == moves[end - 1].from + 1 &&
                   moves[end].to == moves[end - 1].to + 1)
                ++end;
            cache_.copy_blocks(moves[begin].from, moves[begin].to,
                               static_cast<uint32_t>(end - begin));
            begin = end;
        }
        return moves.size();
    });
    return copied ? Status() : fail(copied.error());
}

Result<std::string> ModelRunner::canary(uint32_t block, const LayerHook& hook) {
    LayerHook waits;
    if (hook && ranks_.others != nullptr)
        (void)hook(0);
    else if (hook && ranks_.group == nullptr)
        waits = [&hook](uint32_t layer) {
            (void)hook(layer);
            return true;
        };
    if (ranks_.others != nullptr)
        BERTH_TRY(ranks_.others->canary(block));
    const int32_t token = canary_token(config_.vocab);
    return guarded([&]() -> std::string {
        const ForwardItem item{std::span(&token, 1), 0, std::span(&block, 1), 1, true};
        const at::Tensor logits = forward(config_, weights_, cache_, std::span(&item, 1),
                                          ForwardShape{}, waits, ranks_.group)
                                      .cpu()
                                      .contiguous();
        return canary_digest({logits.data_ptr<float>(), static_cast<size_t>(logits.numel())});
    });
}

} // namespace berth::engine
