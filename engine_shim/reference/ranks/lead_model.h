// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/step_model.h"
#include "engine_shim/reference/ranks/lead.h"

#include <functional>

namespace berth::engine {

// A model that other ranks compute with rank 0: each step is told to them first. Engine thread
// only; all that it refers to outlives it.
class LeadModel final : public StepModel {
  public:
    // `wish`: whether this rank would stand still now, which it is asked between layers.
    LeadModel(Lead& lead, StepModel& model) : lead_(lead), model_(model) {}
    void set_wish(std::function<bool()> wish) { wish_ = std::move(wish); }

    Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem> items,
                                                          const LayerHook& hook) override;
    std::string take_warning() override { return model_.take_warning(); }

  private:
    Lead& lead_;
    StepModel& model_;
    std::function<bool()> wish_;
};

} // namespace berth::engine
