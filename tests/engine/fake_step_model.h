// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/model/step_model.h"

#include <gtest/gtest.h>

#include <map>

namespace berth::engine {

// A "model" whose next token is a hash of the whole sequence so far, kept block by block as real
// keys and values are: a block that was mixed up, a token that was fed twice or left out shows in
// the tokens.
class FakeStepModel final : public StepModel {
  public:
    static constexpr uint32_t kBlockTokens = 4;

    static int32_t next_token(const std::vector<int32_t>& sequence) {
        uint64_t hash = 1469598103934665603ULL;
        for (const int32_t token : sequence)
            hash = (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211ULL;
        return static_cast<int32_t>(hash >> 33) % 50000;
    }
    // What an undisturbed run gives.
    static std::vector<int32_t> expected(std::vector<int32_t> prompt, uint32_t count) {
        std::vector<int32_t> tokens;
        for (uint32_t i = 0; i < count; ++i) {
            tokens.push_back(next_token(prompt));
            prompt.push_back(tokens.back());
        }
        return tokens;
    }

    Result<std::optional<std::vector<SampledToken>>> step(std::span<const StepItem> items,
                                                          const LayerHook& hook) override {
        ++steps;
        prefilled_last = 0;
        items_last = items.size();
        if (fail_next)
            return std::exchange(fail_next, false), fail(ErrorCode::kInternal, "told to fail");
        std::vector<SampledToken> sampled;
        bool decoding = true;
        for (const StepItem& item : items) {
            EXPECT_TRUE(decoding || !item.decode) << "decoding items come first";
            decoding = item.decode;
            prefilled_last += item.decode ? 0 : item.tokens.size();
            for (uint32_t i = 0; i < item.tokens.size(); ++i)
                memory_[place(item, item.position + i)] = item.tokens[i];
            if (item.samples)
                sampled.push_back({next_token(read_back(item)), 0, {}});
        }
        for (uint32_t layer = 0; layer < 3; ++layer) {
            if (hook && !hook(layer))
                return std::nullopt;
        }
        return sampled;
    }

    // What a block holds, to be moved or kept elsewhere; a block that is gone holds nothing.
    using Block = std::map<uint32_t, int32_t>;
    Block read_block(uint32_t block) const {
        Block held;
        for (uint32_t i = 0; i < kBlockTokens; ++i)
            if (const auto found = memory_.find(block * kBlockTokens + i); found != memory_.end())
                held[i] = found->second;
        return held;
    }
    void write_block(uint32_t block, const Block& held) {
        forget_block(block);
        for (const auto& [i, token] : held)
            memory_[block * kBlockTokens + i] = token;
    }
    void forget_block(uint32_t block) {
        for (uint32_t i = 0; i < kBlockTokens; ++i)
            memory_.erase(block * kBlockTokens + i);
    }

    uint64_t steps = 0;
    uint64_t prefilled_last = 0;
    uint64_t items_last = 0;
    bool fail_next = false;

  private:
    static uint32_t place(const StepItem& item, uint32_t position) {
        return item.blocks[position / kBlockTokens] * kBlockTokens + position % kBlockTokens;
    }
    std::vector<int32_t> read_back(const StepItem& item) const {
        std::vector<int32_t> sequence;
        for (uint32_t i = 0; i < item.position + item.tokens.size(); ++i)
            sequence.push_back(memory_.at(place(item, i)));
        return sequence;
    }
    std::map<uint32_t, int32_t> memory_;
};

} // namespace berth::engine
