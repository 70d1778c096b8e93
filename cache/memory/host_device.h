// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/round.h"
#include "cache/memory/device.h"

namespace berth {

Result<std::unique_ptr<Device>> open_host_device(const std::string& id);

// Bytes that a host device may still take, from /proc/meminfo: an allocation over that is refused,
// instead of found out about by the kernel's OOM killer.
struct HostMemory {
    uint64_t total_bytes = 0;
    uint64_t available_bytes = 0;
};
Result<HostMemory> host_memory();

// fallocate(2) on a memfd with the failure in words: ResourceExhausted with the figures when there
// is no room, so that a later write can never be a SIGBUS.
Status reserve_host_bytes(int fd, uint64_t offset, uint64_t bytes, std::string_view what);

// Grant steps: BERTH_GRANT_STEP when it is set (a multiple of `granularity`), else `fallback`.
Result<uint64_t> grant_step_from_environment(uint64_t granularity, uint64_t fallback);

} // namespace berth
