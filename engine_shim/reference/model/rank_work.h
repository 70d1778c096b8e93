// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/model/block_moves.h"
#include "engine_shim/reference/model/step_model.h"

#include <cstdint>
#include <span>

namespace berth::engine {

// All that happens to one rank's part of a model and of its KV memory. Rank 0 decides and does each
// thing itself; what stands behind this interface there tells the other ranks, where the same calls
// are carried out in the same order. So blocks have the same numbers on all ranks. Engine thread
// only.
class RankWork {
  public:
    RankWork() = default;
    RankWork(const RankWork&) = delete;
    RankWork& operator=(const RankWork&) = delete;
    virtual ~RankWork() = default;

    // These two meet in collectives: on rank 0 they return once the others have been told.
    virtual Status step(std::span<const StepItem> items, const LayerHook& hook) = 0;
    virtual Status canary(uint32_t block) = 0;

    // These return when it is done. A failure of one rank is the failure of all.
    virtual Status copy_blocks(std::span<const BlockMove> moves) = 0;
    virtual Status resize(uint64_t arena_bytes) = 0;
    // Copies of blocks in host memory (KvStash), by a number that rank 0 gives them.
    virtual Status save(uint64_t number, std::span<const uint32_t> blocks) = 0;
    virtual Status bring_back(uint64_t number, std::span<const uint32_t> blocks) = 0;
    virtual void forget(uint64_t number) = 0;
};

} // namespace berth::engine
