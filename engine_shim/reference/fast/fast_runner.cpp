// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/fast_runner.h"

#include "engine_shim/reference/model/sampler.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string_view>

namespace berth::engine::fast {

namespace {

bool takes_likeliest(const SamplingParams& params) {
    return params.temperature == 0.0F && !params.logprobs;
}

std::vector<SampledToken> draw(const FastModel::Outcome& outcome, uint32_t vocab,
                               const std::vector<SampleRow>& rows) {
    const c10::InferenceMode inference;
    const at::Device device(at::kCUDA, 0);
    const at::Tensor logits =
        at::for_blob(const_cast<float*>(outcome.logits),
                     {static_cast<int64_t>(rows.size()), static_cast<int64_t>(vocab)})
            .options(at::TensorOptions().dtype(at::kFloat).device(device))
            .target_device(device)
            .make_tensor();
    return sample(logits, rows);
}

} // namespace

// torch, which draws and attends to prompts, throws.
Result<std::optional<std::vector<SampledToken>>> FastRunner::step(std::span<const StepItem> items,
                                                                  const LayerHook& hook) {
    try {
        BERTH_ASSIGN(const auto outcome, model_->step(items, hook));
        if (!outcome)
            return std::nullopt;
        std::vector<SampleRow> rows;
        bool likeliest = true;
        for (const StepItem& item : items) {
            if (!item.samples)
                continue;
            rows.push_back({item.params, item.sample_index});
            likeliest = likeliest && takes_likeliest(item.params);
        }
        if (!likeliest)
            return draw(*outcome, vocab_, rows);
        std::vector<SampledToken> tokens(rows.size());
        for (size_t row = 0; row < rows.size(); ++row)
            tokens[row].token = outcome->best[row];
        return tokens;
    } catch (const std::exception& thrown) {
        const std::string_view text = thrown.what();
        return fail(ErrorCode::kInternal,
                    fmt::format("the model's step failed: {}", text.substr(0, text.find('\n'))),
                    "StepFailed");
    }
}

} // namespace berth::engine::fast
