// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/torch_device.h"

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace berth::engine {

void release_cached_memory(c10::Device device) {
    if (!device.is_cpu())
        at::getDeviceAllocator(device.type())->emptyCache();
}

uint64_t reserved_memory(c10::Device device) {
    if (device.is_cpu())
        return 0;
    const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return static_cast<uint64_t>(stats.reserved_bytes[0].current);
}

void limit_threads(int threads) {
    if (threads > 0)
        at::set_num_threads(threads);
}

int thread_count() {
    return at::get_num_threads();
}

} // namespace berth::engine
