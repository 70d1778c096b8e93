// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/fast_model.h"

#include <memory>

namespace berth::engine::fast {

// The fast path as the scheduler's model: its tokens, or draws from its logits. Engine thread only.
class FastRunner final : public StepModel {
  public:
    FastRunner(std::unique_ptr<Queue> queue, std::unique_ptr<FastModel> model, uint32_t vocab,
               bool looks)
        : queue_(std::move(queue)), model_(std::move(model)), vocab_(vocab), looks_(looks) {}

    Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem> items,
                                                          const LayerHook& hook) override;
    bool waits_for_device() const override { return looks_; }
    std::string take_warning() override { return model_->take_warning(); }
    FastModel& model() { return *model_; }

  private:
    const std::unique_ptr<Queue> queue_; // outlives the model
    const std::unique_ptr<FastModel> model_;
    const uint32_t vocab_;
    const bool looks_;
};

} // namespace berth::engine::fast
