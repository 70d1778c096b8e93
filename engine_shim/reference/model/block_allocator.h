// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace berth::engine {

// Which KV blocks are free. The lowest free block goes first, so that live blocks crowd at the
// arena's start and its top can be given back. Free blocks may still hold what was computed, under
// a key, to be taken again; such a one is given away for something else when no empty one is left,
// the one that was released first before others. Not thread-safe: the engine's thread.
class BlockAllocator {
  public:
    using Key = std::string;
    explicit BlockAllocator(uint32_t blocks = 0) { resize(blocks); }

    uint32_t total() const { return total_; }
    uint32_t free() const { return static_cast<uint32_t>(empty_.size() + kept_.size()); }
    uint32_t kept() const { return static_cast<uint32_t>(kept_.size()); } // of the free ones

    uint32_t free_below(uint32_t limit) const;

    // All or nothing, in ascending order.
    std::optional<std::vector<uint32_t>> allocate(uint32_t count);
    // The same with blocks below `limit` alone.
    std::optional<std::vector<uint32_t>> allocate_below(uint32_t count, uint32_t limit);
    void release(std::span<const uint32_t> blocks);
    // The first of these hold what these keys stand for; a key that others depend on comes first.
    void release(std::span<const uint32_t> blocks, std::span<const Key> keys);
    // How many of these keys, from the first on, free blocks hold; and so many of them, in use from
    // here on.
    uint32_t held(std::span<const Key> keys) const;
    std::vector<uint32_t> take(std::span<const Key> keys);
    // Growing adds free blocks at the top; shrinking needs the blocks above to be free and returns
    // false (changing nothing) when one is not.
    bool resize(uint32_t blocks);

  private:
    struct Kept {
        Key key;
        uint64_t age = 0; // of its release; the smallest is given away first
    };
    void forget(std::map<uint32_t, Kept>::iterator kept);

    uint32_t total_ = 0;
    uint64_t next_age_ = 0;
    std::set<uint32_t> empty_;
    std::map<uint32_t, Kept> kept_;
    std::set<std::pair<uint64_t, uint32_t>> by_age_;
    std::map<Key, std::set<uint32_t>> by_key_; // the same may have been computed more than once
};

} // namespace berth::engine
