// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "engine_shim/reference/model/rank_group.h"
#include "engine_shim/reference/ranks/rank_store.h"

#include <c10/core/Device.h>

#include <memory>
#include <string>

namespace berth::engine {

struct GroupPlace {
    uint32_t rank = 0;
    uint32_t ranks = 1;
    Nanoseconds timeout = std::chrono::seconds(60); // of a collective: the slowest rank's lag
};

// Ranks that compute together by one of c10d's process groups: NCCL where all are on GPUs of their
// own, else Gloo over the loopback interface, which for tensors on a GPU goes through host memory.
// Both open all connections at once. `store` is what open_rank_store() gave; it outlives the group.
// Blocks until all ranks have come. Unavailable, with torch's words, when that fails.
Result<std::unique_ptr<RankGroup>> connect_ranks(RankStore& store, const GroupPlace& place,
                                                 at::Device device, bool shares_device);

Result<std::unique_ptr<RankGroup>> connect_gloo(RankStore& store, const GroupPlace& place);
// Unsupported where this program was built without NCCL's header, or torch has no NCCL.
Result<std::unique_ptr<RankGroup>> connect_nccl(RankStore& store, const GroupPlace& place,
                                                at::Device device);

} // namespace berth::engine
