// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/fast_twins.h"

#include "engine_shim/reference/fast/model_dims.h"
#include "engine_shim/reference/model/decoder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

namespace berth::engine::fast {

namespace {

// How far from float32 the fast one may lie, in parts of the plain one in bf16: it rounds less
// often, and lies at 0.5 to 0.75 of it on the decoders here.
constexpr double kMeanAllowed = 1.0;
constexpr double kRowAllowed = 1.5;

at::Tensor draw(at::IntArrayRef shape, double scale, double mean = 0) {
    return at::randn(shape).mul(scale).add(mean).to(at::kBFloat16);
}

// FP8 by blocks, and what it stands for.
LinearWeight draw_fp8(int64_t out, int64_t in) {
    LinearWeight made;
    made.weight = at::randn({out, in}).mul(40).to(at::kFloat8_e4m3fn);
    made.scales = at::rand({(out + 127) / 128, (in + 127) / 128}).mul(0.002).add(0.002);
    return made;
}

at::Tensor wide_of(const LinearWeight& weight) {
    if (!weight.scales.defined())
        return weight.weight.to(at::kFloat);
    return weight.weight.to(at::kFloat) * weight.scales.repeat_interleave(128, 0)
                                              .narrow(0, 0, weight.weight.size(0))
                                              .repeat_interleave(128, 1)
                                              .narrow(1, 0, weight.weight.size(1));
}

at::Tensor placed(const at::Tensor& tensor, const at::Device& device) {
    return tensor.defined() ? tensor.to(device).contiguous() : tensor;
}

DecoderWeights placed(const DecoderWeights& from, const at::Device& device) {
    DecoderWeights made;
    made.embedding = placed(from.embedding, device);
    made.final_norm = placed(from.final_norm, device);
    made.head = placed(from.head, device);
    for (const LayerWeights& layer : from.layers) {
        LayerWeights& to = made.layers.emplace_back(layer);
        for (LinearWeight* one : {&to.q, &to.k, &to.v, &to.o, &to.gate, &to.up, &to.down})
            *one = {placed(one->weight, device), placed(one->scales, device)};
        for (at::Tensor* one : {&to.input_norm, &to.post_norm, &to.q_bias, &to.k_bias, &to.v_bias,
                                &to.q_norm, &to.k_norm})
            *one = placed(*one, device);
    }
    return made;
}

at::Tensor bytes_on(const at::Device& device, uint64_t bytes, uint8_t value) {
    return at::full({static_cast<int64_t>(bytes)}, value,
                    at::TensorOptions().dtype(at::kByte).device(device));
}

} // namespace

ModelConfig small_config() {
    ModelConfig config;
    config.architecture = Architecture::kLlama;
    config.hidden = 128;
    config.intermediate = 192;
    config.layers = 3;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 64;
    config.vocab = 90;
    config.max_positions = 256;
    return config;
}

TwinModels random_models(const ModelConfig& config, bool fp8) {
    at::manual_seed(11);
    const int64_t hidden = config.hidden, inner = config.intermediate;
    const int64_t query = int64_t{config.heads} * config.head_dim;
    const int64_t key = int64_t{config.kv_heads} * config.head_dim;
    const auto linear = [fp8](int64_t out, int64_t in) {
        return fp8 ? draw_fp8(out, in) : LinearWeight{draw({out, in}, 0.1), {}};
    };
    TwinModels models;
    DecoderWeights& narrow = models.narrow;
    narrow.embedding = draw({config.vocab, hidden}, 1);
    narrow.final_norm = draw({hidden}, 0.1, 1);
    narrow.head = draw({config.vocab, hidden}, 0.2);
    for (uint32_t i = 0; i < config.layers; ++i) {
        LayerWeights layer;
        layer.input_norm = draw({hidden}, 0.1, 1);
        layer.post_norm = draw({hidden}, 0.1, 1);
        layer.q = linear(query, hidden);
        layer.k = linear(key, hidden);
        layer.v = linear(key, hidden);
        layer.o = linear(hidden, query);
        layer.gate = linear(inner, hidden);
        layer.up = linear(inner, hidden);
        layer.down = linear(hidden, inner);
        if (config.qkv_bias) {
            layer.q_bias = draw({query}, 0.3);
            layer.k_bias = draw({key}, 0.3);
            layer.v_bias = draw({key}, 0.3);
        }
        if (config.qk_norm) {
            layer.q_norm = draw({config.head_dim}, 0.1, 1);
            layer.k_norm = draw({config.head_dim}, 0.1, 1);
        }
        narrow.layers.push_back(layer);
    }
    models.wide = narrow;
    const auto widen = [](at::Tensor& tensor) {
        if (tensor.defined())
            tensor = tensor.to(at::kFloat);
    };
    for (at::Tensor* tensor : {&models.wide.embedding, &models.wide.final_norm, &models.wide.head})
        widen(*tensor);
    for (LayerWeights& layer : models.wide.layers) {
        for (LinearWeight* one :
             {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
            *one = {wide_of(*one), {}};
        for (at::Tensor* tensor : {&layer.input_norm, &layer.post_norm, &layer.q_bias,
                                   &layer.k_bias, &layer.v_bias, &layer.q_norm, &layer.k_norm})
            widen(*tensor);
    }
    return models;
}

ModelConfig wide_config(uint32_t heads, uint32_t kv_heads, uint32_t head_dim) {
    ModelConfig config = small_config();
    config.hidden = 256;
    config.intermediate = 704;
    config.heads = heads;
    config.kv_heads = kv_heads;
    config.head_dim = head_dim;
    config.vocab = 1000;
    config.max_positions = 1024;
    return config;
}

void Twins::Error::add(const at::Tensor& found, const at::Tensor& expected) {
    const double spread = expected.std().item<double>();
    const at::Tensor differences = (found - expected).abs().div(spread).to(at::kDouble);
    for (int64_t row = 0; row < differences.size(0); ++row) {
        const double mean = differences.select(0, row).square().mean().item<double>();
        // Also where it is not a number.
        if (!(std::sqrt(mean) <= worst_row))
            worst_row = std::sqrt(mean);
    }
    squares += differences.square().sum().item<double>();
    logits += static_cast<uint64_t>(differences.numel());
    worst = std::max(worst, differences.max().item<double>());
}

double Twins::Error::mean() const {
    return std::sqrt(squares / static_cast<double>(std::max<uint64_t>(logits, 1)));
}

Twins::Twins(const Setting& setting, const QueueMaker& make_queue)
    : config_(setting.config), models_(random_models(setting.config, setting.fp8)),
      on_device_(placed(models_.narrow, setting.device)) {
    EXPECT_EQ(why_not_fast(config_, on_device_), "");
    const KvLayout narrow = kv_layout(config_, at::kBFloat16, kTwinBlock);
    const KvLayout wide = kv_layout(config_, at::kFloat, kTwinBlock);
    // Not numbers, all of them: what was never written must not be read.
    narrow_memory_ = bytes_on(setting.device, setting.blocks * narrow.block_bytes(), 0xff);
    wide_memory_.assign(setting.blocks * wide.block_bytes(), std::byte{0});
    plain_memory_.assign(setting.blocks * narrow.block_bytes(), std::byte{0});
    narrow_ = KvCache(narrow, static_cast<std::byte*>(narrow_memory_.data_ptr()),
                      setting.blocks * narrow.block_bytes(), at::kBFloat16, setting.device);
    wide_ = KvCache(wide, wide_memory_.data(), wide_memory_.size(), at::kFloat, at::kCPU);
    plain_ = KvCache(narrow, plain_memory_.data(), plain_memory_.size(), at::kBFloat16, at::kCPU);
    const Dimensions dims = dimensions_of(config_, setting.fp8);
    const Buffers sizes = lay_out(dims, setting.limits, setting.options, nullptr);
    workspace_ = bytes_on(setting.device, sizes.bytes + 256, 0xff);
    const auto at = reinterpret_cast<uintptr_t>(workspace_.data_ptr());
    auto* aligned = static_cast<std::byte*>(workspace_.data_ptr()) + (256 - at % 256) % 256;
    auto queue = make_queue(lay_out(dims, setting.limits, setting.options, aligned));
    EXPECT_TRUE(queue) << queue.error().message;
    queue_ = std::move(*queue);
    auto made =
        FastModel::make({*queue_, dims, rope_frequencies(config_, 0).inverse,
                         fast_weights(on_device_), fast_pages(narrow_), aligned, setting.limits,
                         setting.options, setting.looks, setting.gate_word, setting.contexts_max});
    EXPECT_TRUE(made) << made.error().message;
    model_ = std::move(*made);
}

// Rows in the order of the items that sample.
at::Tensor Twins::forward_plain(const DecoderWeights& weights, const KvCache& cache,
                                const std::vector<StepItem>& items) const {
    std::vector<ForwardItem> forwarded;
    std::vector<int64_t> row_of(items.size(), -1);
    int64_t rows = 0;
    for (const bool single : {true, false}) // what it takes, and gives, comes singles first
        for (size_t i = 0; i < items.size(); ++i) {
            const StepItem& item = items[i];
            if ((item.tokens.size() == 1) != single)
                continue;
            forwarded.push_back(
                {item.tokens, item.position, item.blocks, item.rope_length, item.samples});
            if (item.samples)
                row_of[i] = rows++;
        }
    std::erase(row_of, -1);
    const at::Tensor logits = forward(config_, weights, cache, forwarded, ForwardShape{}, {});
    return logits.index_select(0, at::tensor(row_of, at::kLong));
}

std::vector<int32_t> Twins::step(const std::vector<StepItem>& items, const LayerHook& hook) {
    const auto outcome = model_->step(items, hook);
    EXPECT_TRUE(outcome) << outcome.error().message;
    if (!outcome || !*outcome)
        return {};
    const at::Tensor expected = forward_plain(models_.wide, wide_, items);
    const at::Tensor plain = forward_plain(models_.narrow, plain_, items);
    const std::vector<int32_t>& best = (*outcome)->best;
    EXPECT_EQ(static_cast<int64_t>(best.size()), expected.size(0));
    if (best.empty())
        return best;
    const at::Device device = narrow_memory_.device();
    const at::Tensor found =
        at::for_blob(const_cast<float*>((*outcome)->logits),
                     {static_cast<int64_t>(best.size()), static_cast<int64_t>(config_.vocab)})
            .options(at::TensorOptions().dtype(at::kFloat).device(device))
            .target_device(device)
            .make_tensor()
            .cpu();
    error_.add(found, expected);
    plain_error_.add(plain, expected);
    for (size_t row = 0; row < best.size(); ++row) {
        const at::Tensor mine = found.select(0, static_cast<int64_t>(row));
        EXPECT_EQ(mine[best[row]].item<float>(), mine.max().item<float>());
    }
    return best;
}

void Twins::set_a_weight(float value) {
    on_device_.layers.back().down.weight.view({-1}).narrow(0, 5, 1).fill_(value);
}

void Twins::expect_no_more_than_rounding() const {
    EXPECT_GT(error_.logits, 0U);
    EXPECT_LE(error_.mean(), kMeanAllowed * plain_error_.mean());
    EXPECT_LE(error_.worst_row, kRowAllowed * plain_error_.worst_row);
}

StepItem Growing::next(uint32_t count) {
    StepItem item;
    item.tokens = std::span(tokens).subspan(computed, count);
    item.position = computed;
    item.blocks = blocks;
    item.rope_length = static_cast<uint32_t>(tokens.size());
    item.samples = computed + count == tokens.size();
    item.decode = item.samples && count == 1;
    computed += count;
    return item;
}

Growing random_sequence(uint32_t length, uint32_t vocab, std::vector<uint32_t> blocks) {
    std::mt19937 random(length);
    Growing made;
    for (uint32_t i = 0; i < length; ++i)
        made.tokens.push_back(static_cast<int32_t>(random() % vocab));
    made.blocks = std::move(blocks);
    return made;
}

void run_sequences(const Twins::Setting& setting, const Twins::QueueMaker& make_queue,
                   uint32_t sequences, uint32_t steps, const char* what) {
    Twins twins(setting, make_queue);
    std::vector<uint32_t> order(setting.blocks);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    std::vector<Growing> running;
    for (uint32_t i = 0; i < sequences; ++i) {
        const auto first = order.begin() + i * kWideBlocks;
        running.push_back(
            random_sequence(3 + i * 37 % 150, setting.config.vocab, {first, first + kWideBlocks}));
    }
    std::vector<StepItem> items;
    uint32_t rows = 0;
    const auto compute = [&] {
        if (!items.empty())
            (void)twins.step(items);
        items.clear();
        rows = 0;
    };
    for (Growing& one : running) { // in steps that fit
        const auto length = static_cast<uint32_t>(one.tokens.size());
        const uint32_t first = length > 40 ? length - 29 : length;
        if (rows + length > setting.limits.chunk_rows)
            compute();
        items.push_back(one.next(first));
        if (first < length) { // the rest needs what came before
            compute();
            items.push_back(one.next(length - first));
        }
        rows += length;
    }
    compute();
    std::mt19937 random(3);
    for (uint32_t step = 0; step < steps; ++step) {
        for (Growing& one : running) {
            one.tokens.push_back(static_cast<int32_t>(random() % setting.config.vocab));
            items.push_back(one.next(1));
        }
        compute();
        if (step == 0 && setting.options.graphs) {
            const Status recorded =
                twins.model().record_now(GraphShelf::rows_for(sequences, setting.limits.sequences));
            EXPECT_TRUE(recorded) << recorded.error().message;
        }
    }
    if (setting.options.graphs && steps > 1)
        EXPECT_GE(twins.model().graph_steps(), steps - 1);
    EXPECT_EQ(twins.model().take_warning(), "");
    twins.expect_no_more_than_rounding();
    const Twins::Error& fast = twins.error();
    const Twins::Error& plain = twins.plain_error();
    std::printf(
        "%s: %u sequences, %llu graph steps; off float32, in parts of the spread: mean %.4f "
        "(plain bf16 %.4f), worst row %.4f (%.4f), worst logit %.4f (%.4f)\n",
        what, sequences, static_cast<unsigned long long>(twins.model().graph_steps()), fast.mean(),
        plain.mean(), fast.worst_row, plain.worst_row, fast.worst, plain.worst);
    std::fflush(stdout);
}

} // namespace berth::engine::fast
