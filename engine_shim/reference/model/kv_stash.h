// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/reference/model/scheduler.h"

#include <map>

namespace berth::engine {

// Keys and values of running sequences while the device memory under them is given back. save()
// copies their blocks to host memory and takes them from the scheduler; restore() gives each
// sequence new blocks, wherever they lie, and copies back. What does not fit any more, or was
// dropped, is recomputed. Engine thread only, with the device fenced.
class KvStash {
  public:
    KvStash(Device& device, uint64_t block_bytes) : device_(device), block_bytes_(block_bytes) {}

    // Bytes that save() would copy now.
    uint64_t live_bytes(Scheduler& scheduler) const;
    // On failure the scheduler still has all its blocks.
    Status save(Scheduler& scheduler, const std::byte* arena);
    // Running sequences go back to waiting.
    void drop(Scheduler& scheduler);
    // The allocator has its new size. Returns how many sequences must be recomputed.
    Result<uint32_t> restore(Scheduler& scheduler, std::byte* arena);
    uint64_t host_bytes() const { return buffer_.mapping.bytes(); }

  private:
    // Adjacent blocks are copied as one piece.
    Status copy_out(const std::vector<uint32_t>& blocks, const std::byte* arena, std::byte* host);
    Status copy_in(const std::vector<uint32_t>& blocks, const std::byte* host, std::byte* arena);

    Device& device_;
    const uint64_t block_bytes_;
    HostBuffer buffer_;
    struct Saved {
        uint64_t offset = 0;
        uint32_t blocks = 0;
    };
    std::map<uint64_t, Saved> saved_; // by the sequence's order
};

} // namespace berth::engine
