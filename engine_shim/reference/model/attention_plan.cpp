// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/attention_plan.h"

#include "base/round.h"
#include "engine_shim/reference/model/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace berth::engine {

namespace {

at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device) {
    at::Tensor host = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
    std::copy(numbers.begin(), numbers.end(), host.data_ptr<int64_t>());
    return host.to(device);
}

// Cosines and sines of every row. All rows share their frequencies unless those depend on lengths.
void plan_rope(const ModelConfig& config, at::Device device, at::ScalarType dtype,
               const std::vector<int64_t>& positions, const std::vector<uint32_t>& lengths,
               AttentionPlan& plan) {
    const int64_t half = config.head_dim / 2;
    const auto rows = static_cast<int64_t>(positions.size());
    const bool per_row = rope_depends_on_length(config);
    at::Tensor inverse = at::empty({per_row ? rows : 1, half}, at::kFloat);
    float scale = 1.0F;
    for (int64_t row = 0; row < inverse.size(0); ++row) {
        const RopeFrequencies made = rope_frequencies(config, lengths[static_cast<size_t>(row)]);
        std::copy(made.inverse.begin(), made.inverse.end(), inverse.data_ptr<float>() + row * half);
        scale = made.scale;
    }
    const at::Tensor angles =
        to_device(positions, device).to(at::kFloat).unsqueeze(1) * inverse.to(device);
    plan.cosine = (angles.cos() * scale).to(dtype).unsqueeze(1);
    plan.sine = (angles.sin() * scale).to(dtype).unsqueeze(1);
}

// A query sees keys up to its own position. Query rows repeat once for each head of a group.
at::Tensor make_mask(const ModelConfig& config, const at::Tensor& query_positions, int64_t batch,
                     int64_t context, at::ScalarType dtype) {
    const at::Device device = query_positions.device();
    const int64_t queries = query_positions.size(0) / batch;
    const int64_t group = config.heads / config.kv_heads;
    const at::Tensor keys = at::arange(context, query_positions.options());
    const at::Tensor hidden = keys.unsqueeze(0).gt(query_positions.unsqueeze(1));
    const at::Tensor mask =
        at::zeros({batch * queries, context}, at::TensorOptions().dtype(dtype).device(device))
            .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
    return mask.view({batch, 1, 1, queries, context})
        .expand({batch, 1, group, queries, context})
        .reshape({batch, 1, group * queries, context});
}

// Blocks for `context` tokens. Beyond the last that this item has written its first one stands in:
// masked anyway, and known to hold finite numbers.
void append_planes(const KvCache& cache, const ForwardItem& item, uint32_t context,
                   std::vector<int64_t>& planes) {
    const uint32_t block = cache.layout().block_tokens;
    const auto end = item.position + static_cast<uint32_t>(item.tokens.size());
    for (uint32_t index = 0; index < context / block; ++index) {
        const bool written = index * block < end;
        planes.push_back(cache.first_plane(item.blocks[written ? index : 0]));
    }
}

struct GroupMaker {
    const ModelConfig& config;
    const KvCache& cache;
    const std::vector<int64_t>& positions;
    const at::Tensor& positions_device;

    // Items of the same number of rows, over the longest context among them.
    AttentionGroup make(std::span<const ForwardItem> items, int64_t row, int64_t queries,
                        uint32_t context) const {
        std::vector<int64_t> planes;
        for (const ForwardItem& item : items)
            append_planes(cache, item, context, planes);
        const auto batch = static_cast<int64_t>(items.size());
        return AttentionGroup{row, batch, queries, to_device(planes, cache.device()),
                              make_mask(config, positions_device.narrow(0, row, batch * queries),
                                        batch, context, cache.dtype())};
    }
};

uint32_t context_of(const ForwardItem& item, uint32_t queries, uint32_t step) {
    return static_cast<uint32_t>(round_up(item.position + queries, step));
}

void plan_groups(const GroupMaker& maker, std::span<const ForwardItem> items,
                 const ForwardShape& shape, AttentionPlan& plan) {
    const uint32_t block = maker.cache.layout().block_tokens;
    const uint32_t step = shape.context_step != 0 ? shape.context_step : block;
    size_t next = 0;
    int64_t row = 0;
    if (shape.context_step == 0) {
        uint32_t context = 0;
        while (next < items.size() && items[next].tokens.size() == 1)
            context = std::max(context, context_of(items[next++], 1, step));
        if (next > 0)
            plan.groups.push_back(maker.make(items.first(next), 0, 1, context));
        row = static_cast<int64_t>(next);
    }
    for (; next < items.size(); ++next) {
        const auto tokens = static_cast<uint32_t>(items[next].tokens.size());
        const uint32_t queries = shape.chunk ? shape.rows : tokens;
        plan.groups.push_back(maker.make(items.subspan(next, 1), row, queries,
                                         context_of(items[next], queries, step)));
        row += queries;
    }
}

} // namespace

AttentionPlan plan_attention(const ModelConfig& config, const KvCache& cache,
                             std::span<const ForwardItem> items, const ForwardShape& shape) {
    AttentionPlan plan;
    std::vector<int64_t> tokens, positions, store_rows, logit_rows;
    std::vector<uint32_t> lengths;
    const uint32_t block = cache.layout().block_tokens;
    for (const ForwardItem& item : items) {
        for (uint32_t i = 0; i < item.tokens.size(); ++i) {
            const uint32_t position = item.position + i;
            tokens.push_back(item.tokens[i]);
            positions.push_back(position);
            lengths.push_back(item.rope_length);
            store_rows.push_back(cache.first_plane(item.blocks[position / block]) * block +
                                 position % block);
        }
        if (item.logits)
            logit_rows.push_back(static_cast<int64_t>(tokens.size()) - 1);
    }
    plan.rows_valid = static_cast<int64_t>(tokens.size());
    plan.rows = std::max<int64_t>(plan.rows_valid, shape.rows);
    while (static_cast<int64_t>(tokens.size()) < plan.rows) {
        tokens.push_back(0);
        positions.push_back(positions.back() + 1);
        lengths.push_back(lengths.back());
    }
    const at::Device device = cache.device();
    plan.tokens = to_device(tokens, device);
    plan.store_rows = to_device(store_rows, device);
    plan.logit_rows = to_device(logit_rows, device);
    plan_rope(config, device, cache.dtype(), positions, lengths, plan);
    const at::Tensor positions_device = to_device(positions, device);
    plan_groups(GroupMaker{config, cache, positions, positions_device}, items, shape, plan);
    return plan;
}

} // namespace berth::engine
