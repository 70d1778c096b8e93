// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/fast/cuda_queue.h"

#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <algorithm>
#include <cmath>

namespace berth::engine::fast {

namespace {

constexpr uint32_t kGatherThreads = 128;

at::Tensor view(const void* at, at::IntArrayRef shape, at::ScalarType type) {
    const at::Device device(at::kCUDA, 0);
    return at::for_blob(const_cast<void*>(at), shape)
        .options(at::TensorOptions().dtype(type).device(device))
        .target_device(device)
        .make_tensor();
}

} // namespace

// torch throws; the caller of the step turns it into an error.
Status attend_with_torch(Queue& queue, const ChunkAttention& attention) {
    const c10::InferenceMode inference;
    const int64_t dim = attention.head_dim;
    const int64_t kv_heads = attention.pages.kv_heads;
    const at::Tensor q =
        view(attention.q, {attention.queries, attention.heads, dim}, at::kBFloat16);
    const at::Tensor keys = at::empty({attention.contexts, kv_heads, dim}, q.options());
    const at::Tensor values = at::empty_like(keys);
    const auto row = static_cast<uint32_t>(kv_heads * dim);
    const GatherParams gather{attention.pages,
                              attention.context_starts,
                              attention.sequences,
                              static_cast<Bf16*>(keys.data_ptr()),
                              static_cast<Bf16*>(values.data_ptr()),
                              attention.items,
                              attention.layer,
                              row};
    BERTH_TRY(queue.launch({Kernel::kGather,
                            {attention.contexts, 1, 1},
                            std::min(kGatherThreads, (row / 8 + 31) / 32 * 32),
                            0,
                            &gather,
                            sizeof gather}));
    const int64_t starts = int64_t{attention.items} + 1;
    const at::Tensor mixed = std::get<0>(at::_flash_attention_forward(
        q, keys, values, view(attention.query_starts, {starts}, at::kInt),
        view(attention.context_starts, {starts}, at::kInt), attention.queries_max,
        attention.context_max, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, 1.0 / std::sqrt(static_cast<double>(dim))));
    view(attention.to, {attention.queries, attention.heads, dim}, at::kBFloat16).copy_(mixed);
    return {};
}

} // namespace berth::engine::fast
