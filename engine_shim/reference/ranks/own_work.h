// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/reference/model/kv_stash.h"
#include "engine_shim/reference/model/runner.h"
#include "engine_shim/reference/ranks/follower.h"

#include <map>
#include <memory>

namespace berth::engine {

// This rank's part of the model and of the memory, as rank 0 moves it. Engine thread only; all that
// it refers to outlives it.
class OwnWork final : public FollowerWork {
  public:
    struct Parts {
        Device& device;
        GrantArena& arena;
        ModelRunner& runner;
        uint64_t workspace_bytes = 0;
        uint64_t host_bytes_max = 0;
    };
    explicit OwnWork(Parts parts);

    Status step(std::span<const StepItem> items, const LayerHook& hook) override;
    Status canary(uint32_t block) override;
    Status copy_blocks(std::span<const BlockMove> moves) override;
    Status resize(uint64_t arena_bytes) override;
    Status save(uint64_t number, std::span<const uint32_t> blocks) override;
    Status bring_back(uint64_t number, std::span<const uint32_t> blocks) override;
    void forget(uint64_t number) override { saved_.erase(number); }
    uint64_t grant_bytes() const override;
    uint64_t host_bytes() const override { return stash_.host_bytes(); }

  private:
    Parts parts_;
    KvStash stash_;
    std::map<uint64_t, std::unique_ptr<SavedKv>> saved_;
};

// An arena that the other ranks have too: they follow each change of its size.
class SharedArena final : public GrantArena {
  public:
    SharedArena(std::unique_ptr<GrantArena> own, RankWork& others)
        : own_(std::move(own)), others_(others) {}
    std::byte* data() const override { return own_->data(); }
    uint64_t bytes() const override { return own_->bytes(); }
    uint64_t bytes_max() const override { return own_->bytes_max(); }
    uint64_t step_bytes() const override { return own_->step_bytes(); }
    // A failure of any rank leaves all as they were.
    Status resize(uint64_t bytes) override;

  private:
    const std::unique_ptr<GrantArena> own_;
    RankWork& others_;
};

} // namespace berth::engine
