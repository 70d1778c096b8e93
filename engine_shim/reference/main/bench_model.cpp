// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/bench_model.h"

#include "base/round.h"
#include "engine_shim/reference/fast/model_dims.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace berth::engine {

namespace {

const at::Device kGpu(at::kCUDA, 0);

at::Tensor draw(at::IntArrayRef shape, double scale, double mean = 0) {
    at::Tensor made = at::empty(shape, at::TensorOptions().dtype(at::kBFloat16).device(kGpu));
    return made.normal_(mean, scale);
}

LinearWeight linear(int64_t out, int64_t in, bool fp8) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(in));
    if (!fp8)
        return {draw({out, in}, scale), {}};
    const at::Tensor scales = at::full({(out + 127) / 128, (in + 127) / 128}, scale / 40,
                                       at::TensorOptions().dtype(at::kFloat).device(kGpu));
    return {draw({out, in}, 40).to(at::kFloat8_e4m3fn), scales};
}

DecoderWeights random_decoder(const ModelConfig& config, bool fp8) {
    const int64_t hidden = config.hidden, inner = config.intermediate;
    const int64_t query = int64_t{config.heads} * config.head_dim;
    const int64_t key = int64_t{config.kv_heads} * config.head_dim;
    DecoderWeights made;
    made.embedding = draw({config.vocab, hidden}, 1);
    made.final_norm = draw({hidden}, 0.05, 1);
    made.head = config.tied_head ? made.embedding : draw({config.vocab, hidden}, 0.02);
    for (uint32_t i = 0; i < config.layers; ++i) {
        LayerWeights& layer = made.layers.emplace_back();
        layer.input_norm = draw({hidden}, 0.05, 1);
        layer.post_norm = draw({hidden}, 0.05, 1);
        layer.q = linear(query, hidden, fp8);
        layer.k = linear(key, hidden, fp8);
        layer.v = linear(key, hidden, fp8);
        layer.o = linear(hidden, query, fp8);
        layer.gate = linear(inner, hidden, fp8);
        layer.up = linear(inner, hidden, fp8);
        layer.down = linear(hidden, inner, fp8);
        if (config.qkv_bias) {
            layer.q_bias = draw({query}, 0.1);
            layer.k_bias = draw({key}, 0.1);
            layer.v_bias = draw({key}, 0.1);
        }
        if (config.qk_norm) {
            layer.q_norm = draw({config.head_dim}, 0.05, 1);
            layer.k_norm = draw({config.head_dim}, 0.05, 1);
        }
    }
    return made;
}

uint64_t bytes_of(const LinearWeight& linear) {
    return linear.weight.nbytes() + (linear.scales.defined() ? linear.scales.nbytes() : 0);
}

} // namespace

Result<ModelConfig> bench_shape(const std::string& name) {
    ModelConfig config;
    config.max_positions = 40960;
    config.rope.theta = 1e6;
    const auto sizes = [&](uint32_t hidden, uint32_t inner, uint32_t layers, uint32_t heads,
                           uint32_t kv_heads, uint32_t head_dim, uint32_t vocab) {
        config.hidden = hidden;
        config.intermediate = inner;
        config.layers = layers;
        config.heads = heads;
        config.kv_heads = kv_heads;
        config.head_dim = head_dim;
        config.vocab = vocab;
        return config;
    };
    if (name == "qwen3-8b" || name == "qwen3-0.6b") {
        config.architecture = Architecture::kQwen3;
        config.qk_norm = true;
        config.tied_head = name == "qwen3-0.6b";
        return name == "qwen3-8b" ? sizes(4096, 12288, 36, 32, 8, 128, 151936)
                                  : sizes(1024, 3072, 28, 16, 8, 128, 151936);
    }
    if (name == "llama-3-8b")
        return sizes(4096, 14336, 32, 32, 8, 128, 128256);
    if (name == "qwen2.5-0.5b") {
        config.architecture = Architecture::kQwen2;
        config.qkv_bias = config.tied_head = true;
        return sizes(896, 4864, 24, 14, 2, 64, 151936);
    }
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no shape '{}': qwen3-8b, qwen3-0.6b, llama-3-8b and "
                            "qwen2.5-0.5b are known",
                            name));
}

Result<std::unique_ptr<BenchModel>> BenchModel::make(const Setting& setting) {
    std::unique_ptr<BenchModel> made(new BenchModel(setting));
    BERTH_TRY(made->allocate());
    return made;
}

Status BenchModel::allocate() {
    const ModelConfig& config = setting_.config;
    decoder_ = random_decoder(config, setting_.fp8);
    fast_weights_ = fast::fast_weights(decoder_);
    dims_ = fast::dimensions_of(config, setting_.fp8);
    const KvLayout layout = kv_layout(config, at::kBFloat16, setting_.block_tokens);
    const uint32_t each = setting_.context / setting_.block_tokens + 1;
    limits_ = {setting_.sequences, setting_.chunk_rows, each};
    const uint64_t bytes = uint64_t{setting_.sequences} * each * layout.block_bytes();
    pages_ = draw({static_cast<int64_t>(bytes / 2)}, 0.5);
    cache_ =
        KvCache(layout, static_cast<std::byte*>(pages_.data_ptr()), bytes, at::kBFloat16, kGpu);
    workspace_ = at::empty(
        {static_cast<int64_t>(fast::lay_out(dims_, limits_, setting_.options, nullptr).bytes)},
        at::TensorOptions().dtype(at::kByte).device(kGpu));
    buffers_ = fast::lay_out(dims_, limits_, setting_.options,
                             static_cast<std::byte*>(workspace_.data_ptr()));
    BERTH_ASSIGN(queue_, fast::make_cuda_queue({buffers_.library}));
    return {};
}

Result<std::unique_ptr<fast::FastModel>>
BenchModel::remake(const fast::FastOptions& options, const fast::LookLimits& looks,
                   const std::atomic<uint32_t>* gate_word) {
    return fast::FastModel::make({*queue_, dims_, rope_frequencies(setting_.config, 0).inverse,
                                  fast_weights_, fast::fast_pages(cache_),
                                  static_cast<std::byte*>(workspace_.data_ptr()), limits_, options,
                                  looks, gate_word, 8192});
}

uint64_t BenchModel::weight_bytes() const {
    uint64_t bytes = decoder_.head.nbytes() + decoder_.final_norm.nbytes();
    for (const LayerWeights& layer : decoder_.layers)
        for (const LinearWeight* linear :
             {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
            bytes += bytes_of(*linear);
    return bytes;
}

uint64_t BenchModel::kv_bytes(uint32_t tokens) const {
    return cache_.layout().block_bytes() / setting_.block_tokens * tokens;
}

std::vector<uint32_t> BenchModel::blocks_of(uint32_t sequence) const {
    const uint32_t each = limits_.blocks_each;
    std::vector<uint32_t> blocks(each);
    for (uint32_t i = 0; i < each; ++i) // neighbours lie apart
        blocks[i] = i * setting_.sequences + sequence;
    return blocks;
}

} // namespace berth::engine
