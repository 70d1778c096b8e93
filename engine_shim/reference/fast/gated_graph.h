// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/cuda_api.h"
#include "engine_shim/reference/fast/queue.h"

namespace berth::engine::fast {

// What a graph of sections is built with, of one context.
struct GatedBuild {
    const CudaApi& api;
    CUcontext context = nullptr;
    CUstream stream = nullptr; // sections are captured from it
    CUfunction look = nullptr; // berth_look
};

// Look, section, look, section, ...; each section is the body of a conditional node, whose
// condition the look before it sets. Unsupported with a driver that is too old.
Result<CUgraph> build_gated(const GatedBuild& build, const GatedSections& sections);

} // namespace berth::engine::fast
