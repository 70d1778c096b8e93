// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>

// What a process holds of host devices, read from outside: berthd confirms by it that memory which
// an engine says it gave back is really back.
namespace berth {

struct HostUsage {
    uint64_t grant_bytes = 0;       // backed: a grant maps only what it has memory for
    uint64_t weights_bytes = 0;     // mapped; shared with every other reader
    uint64_t weights_pss_bytes = 0; // its share of the resident ones; only from host_usage_shared
};

// From /proc/PID/maps: microseconds, whatever the sizes. NotFound when there is no such process.
Result<HostUsage> host_usage(int pid);
// From /proc/PID/smaps, with the proportional share of the weights; the kernel walks page tables
// for it, which takes milliseconds per gigabyte.
Result<HostUsage> host_usage_shared(int pid);

} // namespace berth
