// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/reference/model/host_block_pool.h"
#include "engine_shim/reference/model/rank_work.h"
#include "engine_shim/reference/model/saved_kv.h"

#include <memory>
#include <span>
#include <vector>

namespace berth::engine {

// Copies of sequences' blocks in host memory, while the device memory under them is given back.
// Engine thread only. Copies that were saved may be destroyed after the stash, not brought back.
class KvStash {
  public:
    // `others`: the ranks that keep their parts of what is kept here; null: there are none.
    KvStash(Device& device, std::byte* arena, uint64_t block_bytes, HostBlockPool::Limits limits,
            RankWork* others = nullptr)
        : device_(device), arena_(arena), block_bytes_(block_bytes), others_(others),
          pool_(std::make_shared<HostBlockPool>(device, block_bytes, limits)) {}

    // With the device fenced. ResourceExhausted when there is no host memory for it.
    Result<std::unique_ptr<SavedKv>> save(std::span<const uint32_t> blocks);
    uint64_t host_bytes() const { return pool_->bytes(); }
    uint64_t free_bytes() const { return pool_->free_bytes(); } // at hand, of host_bytes()

  private:
    class Saved;
    // Calls copy(device address, host address, bytes); what is adjacent on both sides is one piece.
    template <typename Copy>
    Status for_pieces(std::span<const uint32_t> blocks, std::span<const uint32_t> slots,
                      Copy copy) const;

    Device& device_;
    std::byte* const arena_;
    const uint64_t block_bytes_;
    RankWork* const others_;
    uint64_t next_number_ = 0;
    const std::shared_ptr<HostBlockPool> pool_;
};

} // namespace berth::engine
