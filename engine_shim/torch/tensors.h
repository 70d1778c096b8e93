// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/memory/device.h"
#include "engine_shim/client/weight_set.h"

#include <ATen/core/Tensor.h>

#include <span>

// Mapped weights and grants as libtorch tensors: no copy, no ownership. A tensor made here must not
// outlive the WeightSet or GrantArena that it looks into. Includes torch: for .cpp files of the
// engine.
namespace berth {

// Opens libtorch_cuda.so, which lies beside the libtorch_cpu.so that this program is linked to, so
// that cuda tensors work; once per process, later calls cost nothing. Only for a cuda device: a CPU
// engine does without its 2 GB. Unsupported, in words, when it is missing or sees no GPU.
Status load_cuda_libraries();
// The first half of that: the libraries are open, and nobody has asked for a GPU yet.
Status open_cuda_libraries();

// The torch device on which a Device's memory lies: cpu, or the visible GPU.
Result<at::Device> torch_device(const Device& device);

// Unsupported for dtypes that torch has no type for (F4, F8_E8M0 and unknown ones): use the bytes.
Result<at::ScalarType> scalar_type_of(DType dtype);

// The tensor at its place in the mapping, in the shape that the manifest says. Reading only: a
// write ends the process.
Result<at::Tensor> tensor_of(const WeightSet& weights, const TensorView& tensor,
                             const at::Device& device);

// A tensor in a grant's address range, `offset` bytes from its start; its bytes must lie below
// bytes_max(), and may only be touched while they lie below bytes().
Result<at::Tensor> tensor_in(const GrantArena& arena, uint64_t offset,
                             std::span<const int64_t> shape, at::ScalarType type,
                             const at::Device& device);

} // namespace berth
