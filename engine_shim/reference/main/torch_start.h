// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <thread>

// How torch's CUDA half, which this program is not linked with, comes in: opening it and the first
// use of its libraries take as long as all else of an engine's start, so they run beside it.
namespace berth::engine {

bool names_gpu(const std::string& device); // "cuda" or a GPU's UUID, as in --device

// Opens the libraries, the driver's and torch's for CUDA, and uses nothing of them: no thread, no
// device. For a process that others are forked from.
Status preload_torch_cuda();

// Begins to open the libraries when `device` names a GPU; else the thread does nothing.
// start_torch_cuda() waits for it and tells its failure. The environment must not change any more.
std::jthread open_torch_early(const std::string& device);

// Opens the libraries if that is still to do, caps what torch's allocator takes at a part of
// `device_bytes` that holds `workspace_bytes`, and starts what matrix products need. Once, on any
// thread, before any other use of a GPU by torch. Unsupported when torch's CUDA half is not
// installed or does not start.
Status start_torch_cuda(uint64_t workspace_bytes, uint64_t device_bytes);

} // namespace berth::engine
