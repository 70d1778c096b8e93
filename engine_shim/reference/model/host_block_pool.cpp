// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/host_block_pool.h"

#include "base/units.h"

#include <fmt/format.h>

namespace berth::engine {

Result<std::vector<uint32_t>> HostBlockPool::take(uint32_t count) {
    while (slots_.free() < count) {
        if (bytes() + slab_bytes() > limits_.bytes_max)
            return fail(ErrorCode::kResourceExhausted,
                        fmt::format("{} of host memory are kept for saved KV, which may take {}: "
                                    "raise --host-kv-memory to save more",
                                    format_bytes(bytes()), format_bytes(limits_.bytes_max)),
                        "HostMemoryFull");
        BERTH_ASSIGN(HostBuffer slab, device_.create_host_buffer(slab_bytes()));
        slabs_.push_back(std::move(slab));
        slots_.resize(static_cast<uint32_t>(slabs_.size()) * limits_.slab_blocks);
    }
    return *slots_.allocate(count);
}

std::byte* HostBlockPool::at(uint32_t slot) const {
    return slabs_[slot / limits_.slab_blocks].mapping.data() +
           slot % limits_.slab_blocks * block_bytes_;
}

} // namespace berth::engine
