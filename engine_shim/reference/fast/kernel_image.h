// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace berth::engine::fast {

// The fatbin of decode_kernels.cu; empty in a build without nvcc.
std::span<const std::byte> kernel_image();
// Of look_kernels.cu; empty too where nvcc could not link it.
std::span<const std::byte> look_image();

} // namespace berth::engine::fast
