// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

// A smaller grant loses the blocks at its top. What lives there moves down into free blocks; when
// there are too few of these, some sequences must give way first. The engine's thread alone.
namespace berth::engine {

class Scheduler;

struct BlockMove {
    uint32_t from = 0;
    uint32_t to = 0;
    bool operator==(const BlockMove&) const = default;
};

// The fewest blocks with which any accepted request gets on, and at least two.
uint32_t least_blocks(const Scheduler& scheduler);
// Orders of the running sequences that must give way so that the others, with a block each to
// spare, fit into `blocks`: first those that could not live there alone, then the youngest.
std::vector<uint64_t> who_gives_way(const Scheduler& scheduler, uint32_t blocks);
// Empties the blocks from `limit` on. `copy` is called before any sequence's blocks change, and
// when it fails none does. The sequences must fit (who_gives_way).
Status move_below(Scheduler& scheduler, uint32_t limit,
                  const std::function<Status(std::span<const BlockMove>)>& copy);

} // namespace berth::engine
