// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/protocol/messages.h"
#include "engine_shim/reference/model/kv_stash.h"
#include "engine_shim/reference/model/scheduler.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace berth::engine {

class ModelRunner;

// What of a grant the arena backs: whole steps below it, after a GPU's work space.
uint64_t backed_bytes(const GrantArena& arena, uint64_t grant_bytes, uint64_t workspace_bytes);

// The engine's memory within its grant: an arena, in which the blocks lie behind what steps are
// computed in, and on a GPU a fixed part for torch's own work space (`workspace_bytes`). It gives
// memory back on Shrink and Offload and takes it again on Grow and Restore; sequences that lose
// their blocks wait in the scheduler, which lets them in again as there is room. Engine thread
// only; all that it refers to outlives it.
class KvMemory {
  public:
    struct Parts {
        Device& device;
        GrantArena& arena;
        ModelRunner& runner;
        Scheduler& scheduler;
        uint64_t workspace_bytes = 0;
        uint64_t host_bytes_max = UINT64_MAX; // for saved KV; what does not fit is recomputed
        uint64_t scratch_bytes = 0;           // of the arena's start: what steps are computed in
        // Of what computes the steps, through a block that is free; empty: the runner's.
        std::function<Result<std::string>(uint32_t block)> canary{};
    };
    explicit KvMemory(Parts parts);

    // Backs the grant and records the canary: the first verified step.
    Status start(uint64_t grant_bytes);
    // All four fill in the phases of `done`. Offload twice only shrinks further.
    Status offload(const protocol::Command& command, protocol::CommandDone& done);
    // On failure, CanaryMismatch among them, the memory is what it was before and stays offloaded.
    Status restore(const protocol::Command& command, protocol::CommandDone& done);
    // Gives the top of the grant back and goes on below it; also while offloaded. GrantTooSmall,
    // with the least, changes nothing. Other failures lose no sequence.
    Status shrink(const protocol::Command& command, protocol::CommandDone& done);
    // Maps more and uses it. A failure changes nothing.
    Status grow(const protocol::Command& command, protocol::CommandDone& done);
    // One step on a fixed token; CanaryMismatch when it is not what it was at the start.
    Status verify();

    bool offloaded() const { return offloaded_; }
    uint64_t grant_bytes() const;
    uint64_t host_bytes() const { return stash_.host_bytes(); }
    uint64_t host_bytes_free() const { return stash_.free_bytes(); }
    // Sequences since the last such call that should have been saved and will be recomputed, for
    // want of host memory.
    uint32_t take_not_saved() { return std::exchange(not_saved_, 0); }
    Status fence() { return parts_.device.synchronize(); }
    // The grant with which it starts.
    uint64_t least_grant() const { return grant_for(kLeastBlocks); }
    // Blocks that a grant of these bytes holds.
    uint64_t blocks_within(uint64_t grant_bytes) const;

  private:
    static constexpr uint64_t kLeastBlocks = 2; // to start with
    uint64_t block_bytes() const;
    uint64_t grant_for(uint64_t blocks) const;
    uint64_t blocks_in(uint64_t arena_bytes) const;
    Status resize(uint64_t grant_bytes);
    Status check_blocks(uint64_t grant_bytes, uint64_t least) const;
    // Backs the grant and hands its blocks to the scheduler; GrantTooSmall when they are too few.
    Status back(uint64_t grant_bytes);
    // Gives the blocks from `blocks` on back.
    Status cut(uint64_t grant_bytes, uint64_t blocks);
    // `ms_left`, to save in, gets less by what saving it takes.
    bool is_saved(const Sequence& sequence, const std::string& kv, double& ms_left) const;
    // These running sequences lose their blocks, saved or not as the command says.
    Status send_away(const protocol::Command& command, const std::vector<uint64_t>& orders);

    Parts parts_;
    KvStash stash_;
    std::string canary_;
    bool offloaded_ = false;
    uint32_t not_saved_ = 0;
};

} // namespace berth::engine
