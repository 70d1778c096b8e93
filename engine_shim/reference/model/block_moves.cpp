// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/block_moves.h"

#include "engine_shim/reference/model/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::engine {

namespace {

constexpr uint32_t kLeastBlocks = 2;

// What a sequence holds, or holds with its next token.
uint32_t held_blocks(const Scheduler& scheduler, const Sequence& sequence) {
    return std::max(static_cast<uint32_t>(sequence.blocks.size()),
                    scheduler.blocks_for(uint64_t{sequence.size()} + 1));
}

} // namespace

uint32_t least_blocks(const Scheduler& scheduler) {
    uint32_t least = UINT32_MAX;
    for (const std::list<Sequence>* list : {&scheduler.running(), &scheduler.waiting()})
        for (const Sequence& sequence : *list)
            least = std::min(least, scheduler.blocks_for(uint64_t{sequence.size()} + 1));
    return least == UINT32_MAX ? kLeastBlocks : std::max(least, kLeastBlocks);
}

std::vector<uint64_t> who_gives_way(const Scheduler& scheduler, uint32_t blocks) {
    std::vector<uint64_t> giving;
    std::vector<const Sequence*> staying; // oldest first
    uint64_t held = 0;
    for (const Sequence& sequence : scheduler.running()) {
        if (const uint32_t alone = held_blocks(scheduler, sequence); alone <= blocks) {
            staying.push_back(&sequence);
            held += alone;
        } else {
            giving.push_back(sequence.order);
        }
    }
    while (staying.size() > 1 && held + staying.size() > blocks) {
        held -= held_blocks(scheduler, *staying.back());
        giving.push_back(staying.back()->order);
        staying.pop_back();
    }
    return giving;
}

Status move_below(Scheduler& scheduler, uint32_t limit,
                  const std::function<Status(std::span<const BlockMove>)>& copy) {
    std::vector<uint32_t*> places;
    for (Sequence& sequence : scheduler.running())
        for (uint32_t& block : sequence.blocks)
            if (block >= limit)
                places.push_back(&block);
    if (places.empty())
        return {};
    const auto free =
        scheduler.allocator().allocate_below(static_cast<uint32_t>(places.size()), limit);
    if (!free)
        return fail(ErrorCode::kInternal,
                    fmt::format("{} blocks in use from block {} on, {} free below it",
                                places.size(), limit, scheduler.allocator().free_below(limit)));
    std::vector<BlockMove> moves;
    std::vector<uint32_t> left;
    for (size_t i = 0; i < places.size(); ++i) {
        moves.push_back({*places[i], (*free)[i]});
        left.push_back(*places[i]);
    }
    if (Status copied = copy(moves); !copied) {
        scheduler.allocator().release(*free);
        return copied;
    }
    for (size_t i = 0; i < places.size(); ++i)
        *places[i] = (*free)[i];
    scheduler.allocator().release(left);
    return {};
}

} // namespace berth::engine
