// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/kv_memory.h"

#include "base/round.h"
#include "engine_shim/reference/model/block_moves.h"
#include "engine_shim/reference/model/canary.h"
#include "engine_shim/reference/model/runner.h"
#include "engine_shim/reference/model/torch_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace berth::engine {

namespace {

constexpr uint64_t kSlabBytes = uint64_t{16} << 20;

HostBlockPool::Limits pool_limits(const KvMemory::Parts& parts) {
    const uint64_t block = parts.runner.cache().layout().block_bytes();
    const uint64_t largest = std::min({kSlabBytes, parts.arena.bytes_max(), parts.host_bytes_max});
    return {parts.host_bytes_max, static_cast<uint32_t>(std::max<uint64_t>(largest / block, 1))};
}

const Sequence& running_sequence(const Scheduler& scheduler, uint64_t order) {
    return *std::find_if(scheduler.running().begin(), scheduler.running().end(),
                         [order](const Sequence& one) { return one.order == order; });
}

// Times a phase into CommandDone.
class Phase {
  public:
    Phase(protocol::CommandDone& done, const char* name) : done_(done), name_(name) {}
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;
    ~Phase() {
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - begin_;
        done_.phases[name_] = took.count();
    }

  private:
    protocol::CommandDone& done_;
    const char* name_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

} // namespace

uint64_t backed_bytes(const GrantArena& arena, uint64_t grant_bytes, uint64_t workspace_bytes) {
    const uint64_t bytes = grant_bytes > workspace_bytes ? grant_bytes - workspace_bytes : 0;
    const uint64_t step = arena.step_bytes();
    return std::min(bytes / step * step, arena.bytes_max());
}

KvMemory::KvMemory(Parts parts)
    : parts_(std::move(parts)), stash_(parts_.device, parts_.arena.data() + parts_.scratch_bytes,
                                       block_bytes(), pool_limits(parts_), parts_.runner.others()) {
}

uint64_t KvMemory::block_bytes() const {
    return parts_.runner.cache().layout().block_bytes();
}

uint64_t KvMemory::grant_bytes() const {
    const uint64_t arena = parts_.arena.bytes();
    return arena == 0 ? 0 : arena + parts_.workspace_bytes;
}

uint64_t KvMemory::blocks_in(uint64_t arena_bytes) const {
    return arena_bytes > parts_.scratch_bytes ? (arena_bytes - parts_.scratch_bytes) / block_bytes()
                                              : 0;
}

uint64_t KvMemory::blocks_within(uint64_t grant_bytes) const {
    return blocks_in(backed_bytes(parts_.arena, grant_bytes, parts_.workspace_bytes));
}

Status KvMemory::resize(uint64_t grant_bytes) {
    return parts_.arena.resize(backed_bytes(parts_.arena, grant_bytes, parts_.workspace_bytes));
}

Status KvMemory::verify() {
    const auto block = parts_.scheduler.allocator().allocate(1);
    if (!block)
        return {}; // all blocks are in use by steps that worked
    const auto made =
        parts_.canary ? parts_.canary(block->front()) : parts_.runner.canary(block->front());
    parts_.scheduler.allocator().release(*block);
    if (!made)
        return fail(made.error());
    if (canary_.empty()) {
        if (!is_finite(*made))
            return fail(ErrorCode::kMismatch,
                        fmt::format("the first step's logits are {}: what it was built of, or its "
                                    "weights, compute nothing of use here; verify its weight set",
                                    *made),
                        "CanaryNotFinite");
        canary_ = *made;
    }
    if (*made == canary_)
        return {};
    return fail(ErrorCode::kMismatch,
                fmt::format("the canary step's logits hash to {:.16}, expected {:.16} as at the "
                            "start: weights or memory have changed; evict this instance and verify "
                            "its weight set",
                            *made, canary_),
                "CanaryMismatch");
}

uint64_t KvMemory::grant_for(uint64_t blocks) const {
    return round_up(parts_.scratch_bytes + blocks * block_bytes(), parts_.arena.step_bytes()) +
           parts_.workspace_bytes;
}

Status KvMemory::check_blocks(uint64_t grant_bytes, uint64_t least) const {
    const uint64_t blocks = blocks_within(grant_bytes);
    if (blocks >= least)
        return {};
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("a grant of {} holds {} KV blocks of {} after {} of work space; with {} "
                    "blocks this engine gets on: the least is {}",
                    format_bytes_exact(grant_bytes), blocks, format_bytes(block_bytes()),
                    format_bytes(parts_.workspace_bytes + parts_.scratch_bytes), least,
                    format_bytes_exact(grant_for(least))),
        "GrantTooSmall");
}

Status KvMemory::back(uint64_t grant_bytes) {
    BERTH_TRY(check_blocks(grant_bytes, kLeastBlocks));
    BERTH_TRY(resize(grant_bytes));
    parts_.scheduler.allocator().resize(static_cast<uint32_t>(blocks_within(grant_bytes)));
    return {};
}

Status KvMemory::cut(uint64_t grant_bytes, uint64_t blocks) {
    BlockAllocator& allocator = parts_.scheduler.allocator();
    if (blocks < allocator.total() && !allocator.resize(static_cast<uint32_t>(blocks)))
        return fail(ErrorCode::kInternal,
                    fmt::format("KV blocks from {} on are still in use, the grant stays", blocks));
    BERTH_TRY(fence());
    const Status resized = resize(grant_bytes);
    if (!resized && !offloaded_) // some of it may be gone already
        allocator.resize(static_cast<uint32_t>(blocks_in(parts_.arena.bytes())));
    return resized;
}

Status KvMemory::start(uint64_t grant_bytes) {
    BERTH_TRY(back(grant_bytes));
    return verify();
}

bool KvMemory::is_saved(const Sequence& sequence, const std::string& kv, double& ms_left) const {
    if (sequence.computed == 0 || kv != "Auto")
        return sequence.computed > 0 && kv == "Save";
    SaveCase one;
    one.bytes = parts_.scheduler.blocks_for(sequence.computed) * block_bytes();
    one.fresh_bytes = one.bytes - std::min(one.bytes, stash_.free_bytes());
    one.tokens = sequence.computed;
    one.prefill_tokens_per_ms = parts_.scheduler.prefill_tokens_per_ms();
    if (!is_worth_saving(one, ms_left))
        return false;
    ms_left -= save_ms(one);
    return true;
}

Status KvMemory::send_away(const protocol::Command& command, const std::vector<uint64_t>& orders) {
    double ms_left = command.grace_ms > 0 ? static_cast<double>(command.grace_ms)
                                          : std::numeric_limits<double>::infinity();
    for (const uint64_t order : orders) {
        const Sequence& sequence = running_sequence(parts_.scheduler, order);
        std::unique_ptr<SavedKv> saved;
        if (is_saved(sequence, command.kv, ms_left)) {
            const std::span<const uint32_t> blocks(sequence.blocks);
            auto kept = stash_.save(blocks.first(parts_.scheduler.blocks_for(sequence.computed)));
            if (!kept && kept.error().code != ErrorCode::kResourceExhausted)
                return fail(kept.error());
            if (kept)
                saved = std::move(*kept);
            else
                ++not_saved_;
        }
        parts_.scheduler.suspend(order, std::move(saved));
    }
    return {};
}

Status KvMemory::offload(const protocol::Command& command, protocol::CommandDone& done) {
    {
        const Phase phase(done, "fence");
        BERTH_TRY(fence());
    }
    if (!offloaded_) {
        const Phase phase(done, "save");
        BERTH_TRY(send_away(command, who_gives_way(parts_.scheduler, 0)));
        parts_.scheduler.allocator().resize(0);
        offloaded_ = true;
    }
    const Phase phase(done, "shrink");
    release_cached_memory(parts_.runner.cache().device());
    return command.grant_bytes < grant_bytes() ? cut(command.grant_bytes, 0) : Status();
}

Status KvMemory::restore(const protocol::Command& command, protocol::CommandDone& done) {
    const uint64_t before = grant_bytes();
    if (!offloaded_ && command.grant_bytes < before)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("Restore to {} while running with {}: Shrink or Offload first",
                                format_bytes(command.grant_bytes), format_bytes(before)));
    Status status;
    {
        const Phase phase(done, "grow");
        status = back(command.grant_bytes);
    }
    if (status && command.canary) {
        const Phase phase(done, "canary");
        status = verify();
    }
    if (status && offloaded_) {
        const Phase phase(done, "restore");
        offloaded_ = false;
        parts_.scheduler.admit();
    }
    if (!status && offloaded_)
        BERTH_TRY(cut(before, 0));
    return status;
}

Status KvMemory::shrink(const protocol::Command& command, protocol::CommandDone& done) {
    if (command.grant_bytes >= grant_bytes())
        return {};
    const uint64_t blocks = offloaded_ ? 0 : blocks_within(command.grant_bytes);
    if (!offloaded_)
        BERTH_TRY(check_blocks(command.grant_bytes, least_blocks(parts_.scheduler)));
    {
        const Phase phase(done, "fence");
        BERTH_TRY(fence());
    }
    if (blocks < parts_.scheduler.allocator().total()) {
        const auto limit = static_cast<uint32_t>(blocks);
        {
            const Phase phase(done, "save");
            BERTH_TRY(send_away(command, who_gives_way(parts_.scheduler, limit)));
        }
        const Phase phase(done, "move");
        BERTH_TRY(
            move_below(parts_.scheduler, limit, [this](std::span<const BlockMove> moves) -> Status {
                BERTH_TRY(parts_.runner.copy_blocks(moves));
                return fence();
            }));
    }
    const Phase phase(done, "shrink");
    return cut(command.grant_bytes, blocks);
}

Status KvMemory::grow(const protocol::Command& command, protocol::CommandDone& done) {
    const uint64_t before = grant_bytes();
    if (offloaded_)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("Grow to {} while offloaded: Restore it first",
                                format_bytes(command.grant_bytes)),
                    "Offloaded");
    if (command.grant_bytes <= before)
        return {};
    const Phase phase(done, "grow");
    if (const Status backed = back(command.grant_bytes); !backed)
        return fail_in(fmt::format("Grow to {}: the grant stays {}",
                                   format_bytes(command.grant_bytes), format_bytes(before)),
                       backed.error());
    return {};
}

} // namespace berth::engine
