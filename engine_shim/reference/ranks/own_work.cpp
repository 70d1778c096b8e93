// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/own_work.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::engine {

namespace {

constexpr uint64_t kSlabBytes = uint64_t{16} << 20;

HostBlockPool::Limits pool_limits(const OwnWork::Parts& parts) {
    const uint64_t block = parts.runner.cache().layout().block_bytes();
    const uint64_t largest = std::min({kSlabBytes, parts.arena.bytes_max(), parts.host_bytes_max});
    return {parts.host_bytes_max, static_cast<uint32_t>(std::max<uint64_t>(largest / block, 1))};
}

} // namespace

OwnWork::OwnWork(Parts parts)
    : parts_(parts), stash_(parts.device, parts.arena.data(),
                            parts.runner.cache().layout().block_bytes(), pool_limits(parts)) {}

Status OwnWork::step(std::span<const StepItem> items, const LayerHook& hook) {
    const auto made = parts_.runner.logits(items, hook);
    return made ? Status() : fail(made.error());
}

Status OwnWork::canary(uint32_t block) {
    const auto made = parts_.runner.canary(block);
    return made ? Status() : fail(made.error());
}

Status OwnWork::copy_blocks(std::span<const BlockMove> moves) {
    BERTH_TRY(parts_.runner.copy_blocks(moves));
    return parts_.device.synchronize();
}

Status OwnWork::resize(uint64_t arena_bytes) {
    BERTH_TRY(parts_.device.synchronize());
    return parts_.arena.resize(arena_bytes);
}

Status OwnWork::save(uint64_t number, std::span<const uint32_t> blocks) {
    BERTH_TRY(parts_.device.synchronize());
    BERTH_ASSIGN(saved_[number], stash_.save(blocks));
    return {};
}

Status OwnWork::bring_back(uint64_t number, std::span<const uint32_t> blocks) {
    const auto found = saved_.find(number);
    if (found == saved_.end() || !found->second)
        return fail(
            ErrorCode::kInternal,
            fmt::format("rank 0 wants saved KV {} back, which this rank never had", number));
    return found->second->bring_back({blocks.begin(), blocks.end()});
}

uint64_t OwnWork::grant_bytes() const {
    const uint64_t arena = parts_.arena.bytes();
    return arena == 0 ? 0 : arena + parts_.workspace_bytes;
}

Status SharedArena::resize(uint64_t bytes) {
    const uint64_t before = own_->bytes();
    BERTH_TRY(own_->resize(bytes));
    const Status theirs = others_.resize(bytes);
    if (theirs)
        return {};
    (void)others_.resize(before);
    (void)own_->resize(before);
    return theirs;
}

} // namespace berth::engine
