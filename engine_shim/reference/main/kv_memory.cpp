// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/kv_memory.h"

#include "engine_shim/reference/model/runner.h"
#include "engine_shim/reference/model/torch_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace berth::engine {

namespace {

// What saving runs at in the worst case: host memory that must be pinned first.
constexpr uint64_t kSaveBytesPerMs = uint64_t{1'500'000};

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
    : parts_(parts), stash_(parts.device, parts.runner.cache().layout().block_bytes()) {}

uint64_t KvMemory::block_bytes() const {
    return parts_.runner.cache().layout().block_bytes();
}

uint64_t KvMemory::grant_bytes() const {
    const uint64_t arena = parts_.arena.bytes();
    return arena == 0 ? 0 : arena + parts_.workspace_bytes;
}

uint64_t KvMemory::blocks_within(uint64_t grant_bytes) const {
    return backed_bytes(parts_.arena, grant_bytes, parts_.workspace_bytes) / block_bytes();
}

Status KvMemory::resize(uint64_t grant_bytes) {
    return parts_.arena.resize(backed_bytes(parts_.arena, grant_bytes, parts_.workspace_bytes));
}

Status KvMemory::verify() {
    const auto block = parts_.scheduler.allocator().allocate(1);
    if (!block)
        return {}; // all blocks are in use by steps that worked
    const auto made = parts_.runner.canary(block->front());
    parts_.scheduler.allocator().release(*block);
    if (!made)
        return fail(made.error());
    if (canary_.empty())
        canary_ = *made;
    if (*made == canary_)
        return {};
    return fail(ErrorCode::kMismatch,
                fmt::format("the canary step's logits hash to {:.16}, expected {:.16} as at the "
                            "start: weights or memory have changed; evict this instance and verify "
                            "its weight set",
                            *made, canary_),
                "CanaryMismatch");
}

Status KvMemory::grow(uint64_t grant_bytes) {
    const uint64_t blocks = blocks_within(grant_bytes);
    if (blocks < 2)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("a grant of {} holds {} KV blocks of {} after {} of work space; at "
                                "least 2 are needed: raise the instance's memory request",
                                format_bytes(grant_bytes), blocks, format_bytes(block_bytes()),
                                format_bytes(parts_.workspace_bytes)),
                    "GrantTooSmall");
    BERTH_TRY(resize(grant_bytes));
    parts_.scheduler.allocator().resize(static_cast<uint32_t>(blocks));
    return {};
}

Status KvMemory::start(uint64_t grant_bytes) {
    BERTH_TRY(grow(grant_bytes));
    return verify();
}

bool KvMemory::worth_saving(const protocol::Command& command) const {
    if (command.kv != "Auto")
        return command.kv == "Save";
    const uint64_t bytes = stash_.live_bytes(parts_.scheduler);
    return command.grace_ms <= 0 ||
           bytes <= static_cast<uint64_t>(command.grace_ms) * kSaveBytesPerMs;
}

Status KvMemory::offload(const protocol::Command& command, protocol::CommandDone& done) {
    {
        const Phase phase(done, "fence");
        BERTH_TRY(fence());
    }
    if (!offloaded_) {
        const Phase phase(done, "save");
        if (worth_saving(command))
            BERTH_TRY(stash_.save(parts_.scheduler, parts_.arena.data()));
        else
            stash_.drop(parts_.scheduler);
        parts_.scheduler.allocator().resize(0);
        offloaded_ = true;
    }
    {
        const Phase phase(done, "shrink");
        release_cached_memory(parts_.runner.cache().device());
        if (command.grant_bytes < grant_bytes())
            BERTH_TRY(resize(command.grant_bytes));
    }
    return {};
}

Status KvMemory::restore(const protocol::Command& command, protocol::CommandDone& done) {
    const uint64_t before = grant_bytes();
    if (!offloaded_ && command.grant_bytes < before)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("Restore to {} while running with {}: Offload first",
                                format_bytes(command.grant_bytes), format_bytes(before)));
    Status status;
    {
        const Phase phase(done, "grow");
        status = grow(command.grant_bytes);
    }
    if (status && command.canary) {
        const Phase phase(done, "canary");
        status = verify();
    }
    if (status && offloaded_) {
        const Phase phase(done, "restore");
        BERTH_TRY(stash_.restore(parts_.scheduler, parts_.arena.data()));
        offloaded_ = false;
    }
    if (!status && offloaded_) {
        parts_.scheduler.allocator().resize(0);
        BERTH_TRY(resize(before));
    }
    return status;
}

} // namespace berth::engine
