// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/reference/model/block_allocator.h"

#include <vector>

namespace berth::engine {

// Host memory for copies of KV blocks, one slot each. Pinning costs more than copying, so memory
// that was taken once stays for the next time, up to a bound. Adjacent slots of one slab are
// adjacent bytes. Engine thread only; it may outlive the device.
class HostBlockPool {
  public:
    struct Limits {
        uint64_t bytes_max = 0;
        uint32_t slab_blocks = 1; // taken from the system at once
    };
    HostBlockPool(Device& device, uint64_t block_bytes, Limits limits)
        : device_(device), block_bytes_(block_bytes), limits_(limits) {}

    // Ascending. ResourceExhausted at the bound, or when the system has no more.
    Result<std::vector<uint32_t>> take(uint32_t count);
    void give_back(const std::vector<uint32_t>& slots) { slots_.release(slots); }

    std::byte* at(uint32_t slot) const;
    bool same_slab(uint32_t a, uint32_t b) const {
        return a / limits_.slab_blocks == b / limits_.slab_blocks;
    }
    uint64_t bytes() const { return slabs_.size() * slab_bytes(); } // in use or not
    uint64_t free_bytes() const { return slots_.free() * block_bytes_; }

  private:
    uint64_t slab_bytes() const { return limits_.slab_blocks * block_bytes_; }

    Device& device_;
    const uint64_t block_bytes_;
    const Limits limits_;
    BlockAllocator slots_;
    std::vector<HostBuffer> slabs_;
};

} // namespace berth::engine
