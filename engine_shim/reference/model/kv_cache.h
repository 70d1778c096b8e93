// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/model/model_config.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace berth::engine {

// How one block lies in memory: [layer][key, value][token][kv head][head dim], contiguous, so that
// a block is one piece to save, move or give back.
struct KvLayout {
    uint32_t layers = 0;
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t block_tokens = 16;
    uint32_t element_bytes = 4;

    uint64_t plane_bytes() const {
        return uint64_t{block_tokens} * kv_heads * head_dim * element_bytes;
    }
    uint64_t block_bytes() const { return uint64_t{layers} * 2 * plane_bytes(); }
};
KvLayout kv_layout(const ModelConfig& config, at::ScalarType dtype, uint32_t block_tokens);

// Paged keys and values as tensors over memory that somebody else owns (a grant's arena) and that
// may be backed only in part: no call touches a block that the caller does not name. Engine thread
// only; the memory outlives it.
class KvCache {
  public:
    KvCache() = default;
    KvCache(const KvLayout& layout, std::byte* memory, uint64_t bytes_max, at::ScalarType dtype,
            at::Device device);

    const KvLayout& layout() const { return layout_; }
    at::ScalarType dtype() const { return planes_.scalar_type(); }
    at::Device device() const { return planes_.device(); }
    std::byte* memory() const { return static_cast<std::byte*>(planes_.data_ptr()); }

    // Row numbers (int64, on the device) of a layer's key plane for blocks given as "first plane"
    // numbers, block * layers * 2; the value plane is the next row.
    at::Tensor gather_keys(const at::Tensor& first_planes, uint32_t layer) const;
    at::Tensor gather_values(const at::Tensor& first_planes, uint32_t layer) const;
    // Stores k and v ([tokens, kv_heads, head_dim]) at `first_rows`: first plane * block_tokens +
    // place within the block.
    void store(const at::Tensor& first_rows, uint32_t layer, const at::Tensor& keys,
               const at::Tensor& values) const;
    // A block that is taken into use is zeroed: masked places must hold finite numbers, since
    // 0 * NaN is NaN.
    void clear_block(uint32_t block) const;
    // `count` blocks from `from` on, to `to`...; the two must not overlap.
    void copy_blocks(uint32_t from, uint32_t to, uint32_t count) const;

    int64_t first_plane(uint32_t block) const { return int64_t{block} * layout_.layers * 2; }

  private:
    KvLayout layout_;
    at::Tensor planes_; // [blocks * layers * 2, block_tokens * kv_heads * head_dim]
    at::Tensor rows_; // the same memory: [blocks * layers * 2 * block_tokens, kv_heads * head_dim]
};

} // namespace berth::engine
