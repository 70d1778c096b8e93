// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/decoder.h"

#include "engine_shim/reference/model/attention_plan.h"

#include <ATen/ATen.h>

namespace berth::engine {

namespace {

// The mean square is taken in float32 whatever the model's dtype; the weight is applied in the
// model's.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
    if (x.is_cuda())
        return at::rms_norm(x, weight.sizes(), weight, epsilon);
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor variance = wide.square().mean({-1}, /*keepdim=*/true);
    return wide.mul(variance.add_(epsilon).rsqrt_()).to(x.scalar_type()).mul_(weight);
}

// FP8 blocks become the model's dtype for this one product: simple and exact, not fast.
at::Tensor linear(const at::Tensor& x, const LinearWeight& w, const at::Tensor& bias) {
    if (!w.scales.defined())
        return at::linear(x, w.weight, bias);
    constexpr int64_t kBlock = 128;
    const at::Tensor scales = w.scales.to(at::kFloat)
                                  .repeat_interleave(kBlock, 0)
                                  .narrow(0, 0, w.weight.size(0))
                                  .repeat_interleave(kBlock, 1)
                                  .narrow(1, 0, w.weight.size(1));
    return at::linear(x, w.weight.to(at::kFloat).mul_(scales).to(x.scalar_type()), bias);
}

// Rotates pairs (i, i + half) of every head of [rows, heads, head_dim].
at::Tensor rotate(const at::Tensor& x, const AttentionPlan& plan) {
    const int64_t half = x.size(-1) / 2;
    const at::Tensor first = x.narrow(-1, 0, half);
    const at::Tensor second = x.narrow(-1, half, half);
    return at::cat(
        {first * plan.cosine - second * plan.sine, second * plan.cosine + first * plan.sine}, -1);
}

// The heads that share a key head become rows of one query matrix, so keys are never repeated.
at::Tensor attend(const ModelConfig& config, const KvCache& cache, const AttentionGroup& group,
                  uint32_t layer, const at::Tensor& queries) {
    const int64_t kv_heads = config.kv_heads;
    const int64_t shared = config.heads / config.kv_heads;
    const int64_t dim = config.head_dim;
    const at::Tensor q = queries.narrow(0, group.row, group.batch * group.queries)
                             .view({group.batch, group.queries, kv_heads, shared, dim})
                             .permute({0, 2, 3, 1, 4})
                             .reshape({group.batch, kv_heads, shared * group.queries, dim});
    const at::Tensor k = cache.gather_keys(group.planes, layer)
                             .view({group.batch, -1, kv_heads, dim})
                             .transpose(1, 2);
    const at::Tensor v = cache.gather_values(group.planes, layer)
                             .view({group.batch, -1, kv_heads, dim})
                             .transpose(1, 2);
    return at::scaled_dot_product_attention(q, k, v, group.mask)
        .view({group.batch, kv_heads, shared, group.queries, dim})
        .permute({0, 3, 1, 2, 4})
        .reshape({group.batch * group.queries, kv_heads * shared * dim});
}

at::Tensor attention(const ModelConfig& config, const LayerWeights& w, const KvCache& cache,
                     const AttentionPlan& plan, uint32_t layer, const at::Tensor& x,
                     const at::Tensor& out_bias) {
    const int64_t dim = config.head_dim;
    at::Tensor q = linear(x, w.q, w.q_bias).view({plan.rows, -1, dim});
    at::Tensor k = linear(x, w.k, w.k_bias).view({plan.rows, -1, dim});
    const at::Tensor v = linear(x, w.v, w.v_bias).view({plan.rows, -1, dim});
    if (config.qk_norm) {
        q = rms_norm(q, w.q_norm, config.norm_epsilon);
        k = rms_norm(k, w.k_norm, config.norm_epsilon);
    }
    q = rotate(q, plan);
    k = rotate(k, plan);
    cache.store(plan.store_rows, layer, k.narrow(0, 0, plan.rows_valid),
                v.narrow(0, 0, plan.rows_valid));
    std::vector<at::Tensor> outputs;
    int64_t rows = 0;
    for (const AttentionGroup& group : plan.groups) {
        outputs.push_back(attend(config, cache, group, layer, q));
        rows += outputs.back().size(0);
    }
    if (rows < plan.rows) // padding rows of a decode batch attend to nothing
        outputs.push_back(at::zeros({plan.rows - rows, outputs[0].size(1)}, x.options()));
    const at::Tensor mixed = outputs.size() == 1 ? outputs[0] : at::cat(outputs, 0);
    return linear(mixed, w.o, out_bias);
}

at::Tensor feed_forward(const LayerWeights& w, const at::Tensor& x, const at::Tensor& out_bias) {
    at::Tensor gate = linear(x, w.gate, w.gate_bias);
    at::silu_(gate);
    return linear(gate.mul_(linear(x, w.up, w.up_bias)), w.down, out_bias);
}

// Each rank looks up the words that it has; of the others' it adds nothing.
at::Tensor embed(const ModelConfig& config, const at::Tensor& words, const at::Tensor& tokens,
                 RankGroup* group) {
    if (group == nullptr)
        return at::embedding(words, tokens);
    const int64_t mine = words.size(0);
    const at::Tensor places = tokens.sub(int64_t{config.share.rank} * mine);
    const at::Tensor here = places.ge(0).logical_and_(places.lt(mine));
    const at::Tensor rows = at::embedding(words, places.mul(here));
    return group->sum(rows.mul_(here.unsqueeze(-1)));
}

// A layer of a rank: the biases of the two outputs are added once, to the sums. `asks`: and learns
// whether all stand still before the next layer.
at::Tensor shared_layer(const ModelConfig& config, const LayerWeights& w, const KvCache& cache,
                        const AttentionPlan& plan, uint32_t layer, at::Tensor x, RankGroup& group,
                        bool asks, bool& stand) {
    const auto add = [&x](at::Tensor part, const at::Tensor& bias) {
        x.add_(bias.defined() ? part.add_(bias) : part);
    };
    const at::Tensor normed = rms_norm(x, w.input_norm, config.norm_epsilon);
    add(group.sum(attention(config, w, cache, plan, layer, normed, {})), w.o_bias);
    const at::Tensor part = feed_forward(w, rms_norm(x, w.post_norm, config.norm_epsilon), {});
    add(asks ? group.sum_and_ask(part, stand) : group.sum(part), w.down_bias);
    return x;
}

// A block that this step begins and does not fill is cleared first.
void clear_new_blocks(const KvCache& cache, std::span<const ForwardItem> items) {
    const uint32_t block = cache.layout().block_tokens;
    for (const ForwardItem& item : items) {
        const auto end = item.position + static_cast<uint32_t>(item.tokens.size());
        const uint32_t last_begin = (end - 1) / block * block;
        if (last_begin >= item.position && end % block != 0)
            cache.clear_block(item.blocks[last_begin / block]);
    }
}

} // namespace

at::Tensor forward(const ModelConfig& config, const DecoderWeights& weights, const KvCache& cache,
                   std::span<const ForwardItem> items, const ForwardShape& shape,
                   const LayerHook& hook, RankGroup* group) {
    const c10::InferenceMode inference;
    const AttentionPlan plan = plan_attention(config, cache, items, shape);
    clear_new_blocks(cache, items);
    at::Tensor x = embed(config, weights.embedding, plan.tokens, group);
    bool stand = group == nullptr;
    for (uint32_t layer = 0; layer < config.layers; ++layer) {
        if (stand && hook && !hook(layer))
            return {};
        const LayerWeights& w = weights.layers[layer];
        if (group != nullptr) {
            const uint32_t next = layer + 1;
            const bool asks =
                hook && next < config.layers && next % group->layers_between_looks() == 0;
            stand = false;
            x = shared_layer(config, w, cache, plan, layer, x, *group, asks, stand);
            continue;
        }
        const at::Tensor normed = rms_norm(x, w.input_norm, config.norm_epsilon);
        x = x.add_(attention(config, w, cache, plan, layer, normed, w.o_bias));
        x = x.add_(feed_forward(w, rms_norm(x, w.post_norm, config.norm_epsilon), w.down_bias));
    }
    if (plan.logit_rows.size(0) == 0)
        return at::empty({0, config.vocab}, x.options().dtype(at::kFloat));
    // A padded batch computes all its rows, so that the shape stays; a chunk needs its last alone.
    const bool all_rows = shape.rows > 0 && !shape.chunk;
    at::Tensor last = all_rows ? x : x.index_select(0, plan.logit_rows);
    last = rms_norm(last, weights.final_norm, config.norm_epsilon);
    at::Tensor logits = at::linear(last, weights.head);
    if (group != nullptr)
        logits = group->side_by_side(logits);
    return (all_rows ? logits.index_select(0, plan.logit_rows) : logits).to(at::kFloat);
}

} // namespace berth::engine
