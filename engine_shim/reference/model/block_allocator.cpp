// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/block_allocator.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace berth::engine {

std::optional<std::vector<uint32_t>> BlockAllocator::allocate(uint32_t count) {
    return allocate_below(count, total_);
}

uint32_t BlockAllocator::free_below(uint32_t limit) const {
    return static_cast<uint32_t>(std::distance(empty_.begin(), empty_.lower_bound(limit)) +
                                 std::distance(kept_.begin(), kept_.lower_bound(limit)));
}

void BlockAllocator::forget(std::map<uint32_t, Kept>::iterator kept) {
    const auto& [block, what] = *kept;
    by_age_.erase({what.age, block});
    const auto same = by_key_.find(what.key);
    same->second.erase(block);
    if (same->second.empty())
        by_key_.erase(same);
    kept_.erase(kept);
}

std::optional<std::vector<uint32_t>> BlockAllocator::allocate_below(uint32_t count,
                                                                    uint32_t limit) {
    if (count > (limit >= total_ ? free() : free_below(limit)))
        return std::nullopt;
    std::vector<uint32_t> blocks;
    blocks.reserve(count);
    while (blocks.size() < count && !empty_.empty() && *empty_.begin() < limit)
        blocks.push_back(empty_.extract(empty_.begin()).value());
    for (auto next = by_age_.begin(); blocks.size() < count;) {
        const uint32_t block = (next++)->second;
        if (block >= limit)
            continue;
        blocks.push_back(block);
        forget(kept_.find(block));
    }
    std::ranges::sort(blocks);
    return blocks;
}

void BlockAllocator::release(std::span<const uint32_t> blocks) {
    for (const uint32_t block : blocks) {
        assert(block < total_ && !kept_.contains(block));
        [[maybe_unused]] const bool was_used = empty_.insert(block).second;
        assert(was_used);
    }
}

// What comes last is given away first: without those before it nobody can take it.
void BlockAllocator::release(std::span<const uint32_t> blocks, std::span<const Key> keys) {
    const size_t holding = std::min(keys.size(), blocks.size());
    release(blocks.subspan(holding));
    for (size_t i = holding; i-- > 0;) {
        const uint32_t block = blocks[i];
        assert(block < total_ && !empty_.contains(block));
        [[maybe_unused]] const bool was_used = kept_.try_emplace(block, keys[i], next_age_).second;
        assert(was_used);
        by_age_.emplace(next_age_++, block);
        by_key_[keys[i]].insert(block);
    }
}

uint32_t BlockAllocator::held(std::span<const Key> keys) const {
    uint32_t count = 0;
    while (count < keys.size() && by_key_.contains(keys[count]))
        ++count;
    return count;
}

std::vector<uint32_t> BlockAllocator::take(std::span<const Key> keys) {
    std::vector<uint32_t> blocks;
    for (const Key& key : keys) {
        const auto found = by_key_.find(key);
        if (found == by_key_.end())
            break;
        blocks.push_back(*found->second.begin());
        forget(kept_.find(blocks.back()));
    }
    return blocks;
}

bool BlockAllocator::resize(uint32_t blocks) {
    if (blocks < total_) {
        if (free() - free_below(blocks) != total_ - blocks)
            return false;
        empty_.erase(empty_.lower_bound(blocks), empty_.end());
        while (!kept_.empty() && kept_.rbegin()->first >= blocks)
            forget(std::prev(kept_.end()));
    }
    for (uint32_t block = total_; block < blocks; ++block)
        empty_.insert(empty_.end(), block);
    total_ = blocks;
    return true;
}

} // namespace berth::engine
