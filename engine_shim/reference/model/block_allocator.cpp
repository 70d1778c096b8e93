// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/block_allocator.h"

#include <cassert>

namespace berth::engine {

std::optional<std::vector<uint32_t>> BlockAllocator::allocate(uint32_t count) {
    if (count > free_.size())
        return std::nullopt;
    std::vector<uint32_t> blocks;
    blocks.reserve(count);
    for (auto next = free_.begin(); blocks.size() < count; next = free_.erase(next))
        blocks.push_back(*next);
    return blocks;
}

void BlockAllocator::release(const std::vector<uint32_t>& blocks) {
    for (const uint32_t block : blocks) {
        assert(block < total_);
        [[maybe_unused]] const bool was_used = free_.insert(block).second;
        assert(was_used);
    }
}

bool BlockAllocator::resize(uint32_t blocks) {
    if (blocks < total_) {
        const auto above = free_.lower_bound(blocks);
        uint32_t free_above = 0;
        for (auto it = above; it != free_.end(); ++it)
            ++free_above;
        if (free_above != total_ - blocks)
            return false;
        free_.erase(above, free_.end());
    }
    for (uint32_t block = total_; block < blocks; ++block)
        free_.insert(free_.end(), block);
    total_ = blocks;
    return true;
}

} // namespace berth::engine
