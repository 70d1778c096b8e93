// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/kv_stash.h"

#include <utility>

namespace berth::engine {

template <typename Copy>
Status KvStash::for_pieces(std::span<const uint32_t> blocks, std::span<const uint32_t> slots,
                           Copy copy) const {
    for (size_t begin = 0; begin < slots.size();) {
        size_t end = begin + 1;
        while (end < slots.size() && blocks[end] == blocks[end - 1] + 1 &&
               slots[end] == slots[end - 1] + 1 && pool_->same_slab(slots[end], slots[begin]))
            ++end;
        BERTH_TRY(copy(arena_ + blocks[begin] * block_bytes_, pool_->at(slots[begin]),
                       (end - begin) * block_bytes_));
        begin = end;
    }
    return {};
}

class KvStash::Saved final : public SavedKv {
  public:
    Saved(const KvStash& stash, std::vector<uint32_t> slots, uint64_t number)
        : stash_(stash), pool_(stash.pool_), others_(stash.others_), slots_(std::move(slots)),
          number_(number) {}
    ~Saved() override {
        pool_->give_back(slots_);
        if (others_ != nullptr)
            others_->forget(number_);
    }

    Status bring_back(const std::vector<uint32_t>& blocks) const override {
        // The blocks may have been another sequence's in a step that still runs.
        BERTH_TRY(stash_.device_.synchronize());
        if (others_ != nullptr)
            BERTH_TRY(others_->bring_back(number_, std::span(blocks).first(slots_.size())));
        return stash_.for_pieces(blocks, slots_,
                                 [this](std::byte* device, const std::byte* host, uint64_t bytes) {
                                     return stash_.device_.copy_to_device(device, host, bytes);
                                 });
    }

  private:
    const KvStash& stash_;
    const std::shared_ptr<HostBlockPool> pool_; // outlives the stash, if need be
    RankWork* const others_;
    const std::vector<uint32_t> slots_;
    const uint64_t number_; // by which the other ranks know it
};

Result<std::unique_ptr<SavedKv>> KvStash::save(std::span<const uint32_t> blocks) {
    BERTH_ASSIGN(std::vector<uint32_t> slots, pool_->take(static_cast<uint32_t>(blocks.size())));
    auto saved = std::make_unique<Saved>(*this, slots, next_number_++);
    BERTH_TRY(
        for_pieces(blocks, slots, [this](const std::byte* device, std::byte* host, uint64_t bytes) {
            return device_.copy_to_host(host, device, bytes);
        }));
    if (others_ != nullptr)
        BERTH_TRY(others_->save(next_number_ - 1, blocks));
    return saved;
}

} // namespace berth::engine
