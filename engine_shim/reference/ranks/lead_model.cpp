// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/lead_model.h"

namespace berth::engine {

Result<std::optional<std::vector<SampledToken>>> LeadModel::step(std::span<const StepItem> items,
                                                                 const LayerHook& hook) {
    // At the gate this rank sleeps before the others are told: they wait for nothing then.
    if (hook && !hook(0))
        return std::nullopt;
    if (!lead_.begin_step())
        return std::nullopt;
    BERTH_TRY(lead_.step(items, {}));
    auto made = model_.step(items, [&](uint32_t layer) {
        return lead_.settle([&] { return !hook || hook(layer); }, [&] { return wish_ && wish_(); });
    });
    if (!made)
        lead_.broken();
    lead_.end_step();
    return made;
}

} // namespace berth::engine
