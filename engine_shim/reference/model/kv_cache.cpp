// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/kv_cache.h"

#include <ATen/ATen.h>

namespace berth::engine {

KvLayout kv_layout(const ModelConfig& config, at::ScalarType dtype, uint32_t block_tokens) {
    return KvLayout{config.layers, config.kv_heads, config.head_dim, block_tokens,
                    static_cast<uint32_t>(c10::elementSize(dtype))};
}

KvCache::KvCache(const KvLayout& layout, std::byte* memory, uint64_t bytes_max,
                 at::ScalarType dtype, at::Device device)
    : layout_(layout) {
    const auto blocks = static_cast<int64_t>(bytes_max / layout.block_bytes());
    const int64_t row = int64_t{layout.kv_heads} * layout.head_dim;
    planes_ = at::for_blob(memory, {blocks * layout.layers * 2, layout.block_tokens * row})
                  .options(at::TensorOptions().dtype(dtype).device(device))
                  .target_device(device)
                  .make_tensor();
    rows_ = planes_.view({blocks * layout.layers * 2 * layout.block_tokens, row});
}

at::Tensor KvCache::gather_keys(const at::Tensor& first_planes, uint32_t layer) const {
    return planes_.index_select(0, first_planes.add(int64_t{layer} * 2));
}

at::Tensor KvCache::gather_values(const at::Tensor& first_planes, uint32_t layer) const {
    return planes_.index_select(0, first_planes.add(int64_t{layer} * 2 + 1));
}

void KvCache::store(const at::Tensor& first_rows, uint32_t layer, const at::Tensor& keys,
                    const at::Tensor& values) const {
    const int64_t tokens = keys.size(0);
    const int64_t plane = layout_.block_tokens;
    at::Tensor rows = rows_;
    rows.index_copy_(0, first_rows.add(int64_t{layer} * 2 * plane), keys.reshape({tokens, -1}));
    rows.index_copy_(0, first_rows.add((int64_t{layer} * 2 + 1) * plane),
                     values.reshape({tokens, -1}));
}

void KvCache::clear_block(uint32_t block) const {
    planes_.narrow(0, first_plane(block), int64_t{layout_.layers} * 2).zero_();
}

void KvCache::copy_blocks(uint32_t from, uint32_t to, uint32_t count) const {
    const int64_t planes = int64_t{count} * layout_.layers * 2;
    planes_.narrow(0, first_plane(to), planes).copy_(planes_.narrow(0, first_plane(from), planes));
}

} // namespace berth::engine
