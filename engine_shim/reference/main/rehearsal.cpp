// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/rehearsal.h"

#include "engine_shim/reference/main/trial.h"

#include <algorithm>

namespace berth::engine {

namespace {

constexpr uint32_t kStride = 31; // from one token to the next

} // namespace

Rehearsal::Rehearsal(Parts parts) : parts_(parts) {
    for (const uint32_t part : {16U, 4U, 1U})
        lengths_.push_back(std::max(parts_.limits.prefill_tokens / part, 1U));
}

Status Rehearsal::next(const LayerHook& hook) {
    // One block is for the token that it gives.
    const uint32_t blocks = parts_.scheduler.allocator().total();
    const uint64_t room = uint64_t{blocks - std::min(blocks, 1U)} * parts_.limits.block_tokens;
    const uint64_t length =
        std::min({uint64_t{lengths_.back()}, room, uint64_t{parts_.max_context - 1}});
    std::vector<int32_t> prompt;
    for (uint64_t n = 0; n < length; ++n)
        prompt.push_back(static_cast<int32_t>((1 + n * kStride) % parts_.vocab));
    if (prompt.empty()) {
        lengths_.pop_back();
        return {};
    }
    bool is_abandoned = false;
    const auto tokens = try_alone(parts_.model, parts_.scheduler, parts_.limits, std::move(prompt),
                                  1, [&](uint32_t layer) {
                                      is_abandoned = !hook(layer);
                                      return !is_abandoned;
                                  });
    if (!tokens)
        lengths_.clear();
    else if (!is_abandoned)
        lengths_.pop_back();
    return tokens ? Status() : fail(tokens.error());
}

} // namespace berth::engine
