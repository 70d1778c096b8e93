// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"

namespace berth {

// A grant on a host device: one reserved address range, backed from its start by a memfd named
// "berth-grant:<pid>", so that another process can count it in /proc/PID/maps. What is mapped is
// backed, and what is given back is cut off the memfd, so that the kernel has it at once.
Result<std::unique_ptr<GrantArena>> create_host_grant(uint64_t bytes_max, uint64_t step_bytes);

} // namespace berth
