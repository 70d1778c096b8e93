// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/fast_weights.h"

#include "engine_shim/reference/model/kv_cache.h"
#include "engine_shim/reference/model/rope.h"
#include "engine_shim/reference/model/weights.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

namespace berth::engine::fast {

namespace {

constexpr uint32_t kStep = 64; // what the kernels take of k at once

const Bf16* bits(const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<const Bf16*>(tensor.data_ptr()) : nullptr;
}

Matrix matrix(const at::Tensor& weight, const at::Tensor& scales = {}) {
    return {weight.data_ptr(),
            scales.defined() ? static_cast<const float*>(scales.data_ptr()) : nullptr,
            static_cast<uint32_t>(weight.size(0)), static_cast<uint32_t>(weight.size(1))};
}
Matrix matrix(const LinearWeight& linear) {
    return matrix(linear.weight, linear.scales);
}

// The first thing about a layer that the kernels cannot take.
std::string why_not(const LayerWeights& layer) {
    for (const at::Tensor& bias : {layer.o_bias, layer.gate_bias, layer.up_bias, layer.down_bias})
        if (bias.defined())
            return "biases behind other matrices than q, k and v";
    for (const LinearWeight* linear :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
        if (!linear->weight.is_contiguous())
            return "matrices that do not lie row by row";
        if (linear->scales.defined() &&
            (linear->scales.scalar_type() != at::kFloat || !linear->scales.is_contiguous()))
            return "scales that are not float32";
    }
    const bool attention = layer.q.scales.defined();
    if (layer.k.scales.defined() != attention || layer.v.scales.defined() != attention ||
        layer.gate.scales.defined() != layer.up.scales.defined())
        return "FP8 and bf16 matrices side by side";
    return {};
}

} // namespace

std::string why_not_fast(const ModelConfig& config, const DecoderWeights& weights) {
    if (weights.embedding.scalar_type() != at::kBFloat16)
        return "weights of another type than bfloat16";
    if (config.head_dim != 64 && config.head_dim != 128)
        return fmt::format("heads of {} places: 64 and 128 are", config.head_dim);
    if (config.hidden % kStep != 0 || config.intermediate % kStep != 0)
        return fmt::format("a width of {} or {} that is no multiple of {}", config.hidden,
                           config.intermediate, kStep);
    if (rope_depends_on_length(config))
        return "rotary frequencies that depend on the length";
    for (const LayerWeights& layer : weights.layers)
        if (std::string why = why_not(layer); !why.empty())
            return why;
    return {};
}

bool has_fp8(const DecoderWeights& weights) {
    for (const LayerWeights& layer : weights.layers)
        for (const LinearWeight* linear : {&layer.q, &layer.o, &layer.gate, &layer.down})
            if (linear->scales.defined())
                return true;
    return false;
}

FastWeights fast_weights(const DecoderWeights& weights) {
    FastWeights made;
    made.embedding = bits(weights.embedding);
    made.final_norm = bits(weights.final_norm);
    made.head = matrix(weights.head);
    for (const LayerWeights& layer : weights.layers) {
        FastLayer& to = made.layers.emplace_back();
        to.input_norm = bits(layer.input_norm);
        to.post_norm = bits(layer.post_norm);
        to.q_norm = bits(layer.q_norm);
        to.k_norm = bits(layer.k_norm);
        to.bias[0] = bits(layer.q_bias);
        to.bias[1] = bits(layer.k_bias);
        to.bias[2] = bits(layer.v_bias);
        to.qkv[0] = matrix(layer.q);
        to.qkv[1] = matrix(layer.k);
        to.qkv[2] = matrix(layer.v);
        to.o = matrix(layer.o);
        to.gate_up[0] = matrix(layer.gate);
        to.gate_up[1] = matrix(layer.up);
        to.down = matrix(layer.down);
    }
    return made;
}

Pages fast_pages(const KvCache& cache) {
    const KvLayout& layout = cache.layout();
    Pages pages{};
    pages.memory = reinterpret_cast<Bf16*>(cache.memory());
    pages.plane_stride = layout.plane_bytes() / sizeof(Bf16);
    pages.block_stride = layout.block_bytes() / sizeof(Bf16);
    pages.block_tokens = layout.block_tokens;
    pages.kv_heads = layout.kv_heads;
    return pages;
}

} // namespace berth::engine::fast
