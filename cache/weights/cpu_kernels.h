// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/weights/device_kernels.h"

// DeviceKernels by CPU threads.
namespace berth {

// On memory that the CPU may address.
std::unique_ptr<DeviceKernels> kernels_in_place(uint32_t counters);
// On any device, through pieces in host memory; `why` ends up in place(). `device` outlives it.
std::unique_ptr<DeviceKernels> kernels_by_copies(Device& device, uint32_t counters,
                                                 std::string why);

// The conditions on a job that hold everywhere, in words.
Status check_job(const QuantiseJob& job, uint64_t counters);
Status check_extents(std::span<const DeviceExtent> extents);

} // namespace berth
