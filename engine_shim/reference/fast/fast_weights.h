// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/reference/fast/kernel_params.h"

#include <string>
#include <vector>

namespace berth::engine {
struct DecoderWeights;
struct ModelConfig;
class KvCache;
} // namespace berth::engine

namespace berth::engine::fast {

// A matrix as the kernels take it.
struct Matrix {
    const void* data = nullptr;
    const float* scales = nullptr; // FP8 by blocks where there are some
    uint32_t n = 0, k = 0;
    bool fp8() const { return scales != nullptr; }
};

struct FastLayer {
    const Bf16* input_norm = nullptr;
    const Bf16* post_norm = nullptr;
    const Bf16* q_norm = nullptr;
    const Bf16* k_norm = nullptr;
    const Bf16* bias[3] = {}; // of q, k, v
    Matrix qkv[3];
    Matrix o;
    Matrix gate_up[2];
    Matrix down;
};

// The decoder's tensors as addresses: views of the mapped set, which outlives this.
struct FastWeights {
    const Bf16* embedding = nullptr;
    const Bf16* final_norm = nullptr;
    Matrix head;
    std::vector<FastLayer> layers;
};

// Why the fast path does not compute this model ("float32 weights", ...); empty: it does.
std::string why_not_fast(const ModelConfig& config, const DecoderWeights& weights);
bool has_fp8(const DecoderWeights& weights);
FastWeights fast_weights(const DecoderWeights& weights);
// The cache's pages; header and tables are still to be set.
Pages fast_pages(const KvCache& cache);

} // namespace berth::engine::fast
