// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace berth::engine {

// Gives memory that torch keeps for reuse back to the device; nothing on the CPU.
void release_cached_memory(c10::Device device);
// Bytes that torch holds on the device, in use or kept; 0 on the CPU.
uint64_t reserved_memory(c10::Device device);
// Threads of one operation; 0 leaves torch's choice.
void limit_threads(int threads);
int thread_count();

} // namespace berth::engine
