// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/protocol/messages.h"
#include "engine_shim/reference/model/kv_stash.h"
#include "engine_shim/reference/model/scheduler.h"

#include <string>

namespace berth::engine {

class ModelRunner;

// What of a grant the arena backs: whole steps below it, after a GPU's work space.
uint64_t backed_bytes(const GrantArena& arena, uint64_t grant_bytes, uint64_t workspace_bytes);

// The engine's memory within its grant: blocks in an arena, and on a GPU a fixed part for torch's
// own work space (`workspace_bytes`). It gives memory back on Offload and takes it again on
// Restore. Engine thread only; all that it refers to outlives it.
class KvMemory {
  public:
    struct Parts {
        Device& device;
        GrantArena& arena;
        ModelRunner& runner;
        Scheduler& scheduler;
        uint64_t workspace_bytes = 0;
    };
    explicit KvMemory(Parts parts);

    // Backs the grant and records the canary: the first verified step.
    Status start(uint64_t grant_bytes);
    // Both fill in the phases of `done`. Offload twice only shrinks further.
    Status offload(const protocol::Command& command, protocol::CommandDone& done);
    // On failure, CanaryMismatch among them, the memory is what it was before and stays offloaded.
    Status restore(const protocol::Command& command, protocol::CommandDone& done);
    // One step on a fixed token; CanaryMismatch when it is not what it was at the start.
    Status verify();

    bool offloaded() const { return offloaded_; }
    uint64_t grant_bytes() const;
    uint64_t host_bytes() const { return stash_.host_bytes(); }
    Status fence() { return parts_.device.synchronize(); }
    // Blocks that a grant of these bytes holds.
    uint64_t blocks_within(uint64_t grant_bytes) const;

  private:
    uint64_t block_bytes() const;
    Status resize(uint64_t grant_bytes);
    // Backs the grant and hands its blocks to the scheduler; GrantTooSmall when they are too few.
    Status grow(uint64_t grant_bytes);
    bool worth_saving(const protocol::Command& command) const;

    Parts parts_;
    KvStash stash_;
    std::string canary_;
    bool offloaded_ = false;
};

} // namespace berth::engine
