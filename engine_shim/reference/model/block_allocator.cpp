// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/block_allocator.h"

#include <cassert>
#include <iterator>

namespace berth::engine {

std::optional<std::vector<uint32_t>> BlockAllocator::allocate(uint32_t count) {
    return allocate_below(count, total_);
}

uint32_t BlockAllocator::free_below(uint32_t limit) const {
    return static_cast<uint32_t>(std::distance(free_.begin(), free_.lower_bound(limit)));
}

std::optional<std::vector<uint32_t>> BlockAllocator::allocate_below(uint32_t count,
                                                                    uint32_t limit) {
    if (count > (limit >= total_ ? free() : free_below(limit)))
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
        if (free() - free_below(blocks) != total_ - blocks)
            return false;
        free_.erase(free_.lower_bound(blocks), free_.end());
    }
    for (uint32_t block = total_; block < blocks; ++block)
        free_.insert(free_.end(), block);
    total_ = blocks;
    return true;
}

} // namespace berth::engine
