// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace berth::engine {

// Which KV blocks are free. The lowest free block goes first, so that live blocks crowd at the
// arena's start and its top can be given back. Not thread-safe: the engine's thread.
class BlockAllocator {
  public:
    explicit BlockAllocator(uint32_t blocks = 0) { resize(blocks); }

    uint32_t total() const { return total_; }
    uint32_t free() const { return static_cast<uint32_t>(free_.size()); }

    uint32_t free_below(uint32_t limit) const;

    // All or nothing, in ascending order.
    std::optional<std::vector<uint32_t>> allocate(uint32_t count);
    // The same with blocks below `limit` alone.
    std::optional<std::vector<uint32_t>> allocate_below(uint32_t count, uint32_t limit);
    void release(const std::vector<uint32_t>& blocks);
    // Growing adds free blocks at the top; shrinking needs the blocks above to be free and returns
    // false (changing nothing) when one is not.
    bool resize(uint32_t blocks);

  private:
    uint32_t total_ = 0;
    std::set<uint32_t> free_;
};

} // namespace berth::engine
