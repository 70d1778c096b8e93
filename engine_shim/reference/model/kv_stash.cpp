// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/kv_stash.h"

namespace berth::engine {

namespace {

// Calls copy(first index, first block, count) for each run of adjacent blocks.
template <typename Copy>
Status for_runs(const std::vector<uint32_t>& blocks, Copy copy) {
    for (size_t begin = 0; begin < blocks.size();) {
        size_t end = begin + 1;
        while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1)
            ++end;
        BERTH_TRY(copy(begin, blocks[begin], end - begin));
        begin = end;
    }
    return {};
}

} // namespace

uint64_t KvStash::live_bytes(Scheduler& scheduler) const {
    uint64_t blocks = 0;
    for (const Sequence& sequence : scheduler.running())
        blocks += scheduler.blocks_for(sequence.computed);
    return blocks * block_bytes_;
}

Status KvStash::copy_out(const std::vector<uint32_t>& blocks, const std::byte* arena,
                         std::byte* host) {
    return for_runs(blocks, [&](size_t index, uint32_t block, size_t count) {
        return device_.copy_to_host(host + index * block_bytes_, arena + block * block_bytes_,
                                    count * block_bytes_);
    });
}

Status KvStash::copy_in(const std::vector<uint32_t>& blocks, const std::byte* host,
                        std::byte* arena) {
    return for_runs(blocks, [&](size_t index, uint32_t block, size_t count) {
        return device_.copy_to_device(arena + block * block_bytes_, host + index * block_bytes_,
                                      count * block_bytes_);
    });
}

Status KvStash::save(Scheduler& scheduler, const std::byte* arena) {
    const uint64_t bytes = live_bytes(scheduler);
    HostBuffer buffer;
    if (bytes > 0) {
        BERTH_ASSIGN(buffer, device_.create_host_buffer(bytes));
    }
    std::map<uint64_t, Saved> saved;
    // Of all sequences together, in the order of the blocks, so that the pieces are large.
    uint64_t offset = 0;
    for (const Sequence& sequence : scheduler.running()) {
        std::vector<uint32_t> blocks = sequence.blocks;
        blocks.resize(scheduler.blocks_for(sequence.computed));
        if (blocks.empty())
            continue;
        BERTH_TRY(copy_out(blocks, arena, buffer.mapping.data() + offset));
        saved[sequence.order] = {offset, static_cast<uint32_t>(blocks.size())};
        offset += blocks.size() * block_bytes_;
    }
    for (Sequence& sequence : scheduler.running()) {
        scheduler.allocator().release(sequence.blocks);
        sequence.blocks.clear();
    }
    buffer_ = std::move(buffer);
    saved_ = std::move(saved);
    return {};
}

void KvStash::drop(Scheduler& scheduler) {
    for (Sequence& sequence : scheduler.running()) {
        scheduler.allocator().release(sequence.blocks);
        sequence.blocks.clear();
    }
    saved_.clear();
    buffer_ = {};
    scheduler.requeue_without_blocks();
}

Result<uint32_t> KvStash::restore(Scheduler& scheduler, std::byte* arena) {
    uint32_t lost = 0;
    for (Sequence& sequence : scheduler.running()) {
        const auto found = saved_.find(sequence.order);
        const uint32_t needed = scheduler.blocks_for(uint64_t{sequence.size()} + 1);
        auto blocks = found == saved_.end() ? std::nullopt : scheduler.allocator().allocate(needed);
        if (!blocks) {
            ++lost;
            continue;
        }
        sequence.blocks = *blocks;
        blocks->resize(found->second.blocks);
        BERTH_TRY(copy_in(*blocks, buffer_.mapping.data() + found->second.offset, arena));
    }
    saved_.clear();
    buffer_ = {};
    scheduler.requeue_without_blocks();
    scheduler.refuse_impossible();
    return lost;
}

} // namespace berth::engine
