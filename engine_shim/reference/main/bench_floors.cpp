// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/bench_parts.h"

#include <ATen/ATen.h>

namespace berth::engine {

using fast::FastOptions;

namespace {

struct ProductWay {
    const char* name;
    bool streams, many_tiles, library;
};
constexpr ProductWay kProductWays[] = {{"stream, few tiles", true, false, false},
                                       {"stream", true, true, false},
                                       {"own 1x8", false, false, false},
                                       {"library", false, false, true}};

} // namespace

// Of a graph of these launches, in the middle of several starts. They are made once before: what
// runs for the first time may not be recorded.
Result<double> Bench::recorded_seconds(const std::function<Status()>& launches) {
    fast::Queue& queue = model_.queue();
    BERTH_TRY(launches());
    BERTH_TRY(queue.wait());
    BERTH_TRY(queue.begin_recording());
    const Status launched = launches();
    auto recorded = queue.end_recording(); // also after a failure, which is what is told
    BERTH_TRY(launched);
    BERTH_ASSIGN(const auto graph, std::move(recorded));
    BERTH_TRY(graph->prepare());
    std::vector<double> times;
    for (uint32_t round = 0; round < 9; ++round) {
        const auto begun = Clock::now();
        BERTH_TRY(queue.start(*graph));
        BERTH_TRY(queue.wait());
        times.push_back(seconds_since(begun));
    }
    return median(times);
}

Status Bench::read() {
    const uint64_t bytes = uint64_t{8} << 30;
    const at::Tensor memory =
        at::ones({static_cast<int64_t>(bytes / 4)},
                 at::TensorOptions().dtype(at::kInt).device(at::Device(at::kCUDA, 0)));
    for (const uint32_t groups : {1056U, 2112U, 8448U}) {
        const fast::ReadParams params{memory.data_ptr(), bytes,
                                      static_cast<uint32_t*>(memory.data_ptr())};
        BERTH_ASSIGN(
            const double seconds, recorded_seconds([&] {
                return model_.queue().launch(
                    {fast::Kernel::kReadAll, {groups, 1, 1}, 256, 0, &params, sizeof params});
            }));
        read_rate_ = std::max(read_rate_, static_cast<double>(bytes) / seconds);
    }
    print(R"({{"bench":"read","bytes_per_second":{:.4g}}})", read_rate_);
    return {};
}

// What the library reaches on a large square product, which prefill is compared with.
Status Bench::multiply() {
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::Device(at::kCUDA, 0));
    constexpr int64_t kSide = 8192;
    const at::Tensor a = at::randn({kSide, kSide}, options);
    const at::Tensor b = at::randn({kSide, kSide}, options);
    std::vector<double> times;
    for (int round = 0; round < 8; ++round) {
        BERTH_TRY(model_.queue().wait());
        const auto begun = Clock::now();
        for (int i = 0; i < 4; ++i)
            (void)at::matmul(a, b);
        BERTH_TRY(model_.queue().wait());
        times.push_back(seconds_since(begun) / 4);
    }
    matrix_rate_ = 2.0 * kSide * kSide * kSide / median(times);
    print(R"({{"bench":"multiply","side":{},"operations_per_second":{:.4g}}})", kSide,
          matrix_rate_);
    return {};
}

Status Bench::product_shape(const char* name, bool pair,
                            const std::function<std::vector<fast::Matrix>(uint32_t)>& parts,
                            uint32_t matrices) {
    uint64_t bytes = 0;
    for (const fast::Matrix& part : parts(0))
        bytes += uint64_t{part.n} * part.k * (part.fp8() ? 1 : 2);
    const fast::Buffers& buffers = model_.buffers();
    void* to = pair ? static_cast<void*>(buffers.active) : static_cast<void*>(buffers.qkv);
    if (parts(0)[0].n == model_.dims().vocab)
        to = buffers.logits;
    for (const uint32_t rows : {1U, 4U, 8U, 16U, 24U, 32U}) {
        for (const ProductWay& way : kProductWays) {
            FastOptions options;
            options.stream_rows = options.stream_rows_pair = way.streams ? 1024 : 0;
            options.stream_input_max = UINT32_MAX;
            options.many_tiles = way.many_tiles;
            options.own_rows = options.own_rows_fp8 = way.library ? 0 : 1024;
            const fast::Layers layers(model_.dims(), model_.weights(), buffers,
                                      fast::fast_pages(model_.cache()), options);
            BERTH_ASSIGN(const double seconds, recorded_seconds([&]() -> Status {
                             for (uint32_t i = 0; i < matrices; ++i)
                                 BERTH_TRY(layers.product(model_.queue(), parts(i), buffers.normed,
                                                          to, rows,
                                                          pair ? fast::kSiluTimes : fast::kStore));
                             return {};
                         }));
            const double each = seconds / matrices;
            print(R"({{"bench":"product","matrix":"{}","rows":{},"way":"{}","microseconds":{:.2f},)"
                  R"("floor_ratio":{:.3f}}})",
                  name, rows, way.name, each * 1e6, each * read_rate_ / static_cast<double>(bytes));
        }
    }
    return {};
}

// A step's products behind each other, with and without attention between them: what is left of
// the step is norms and the ends. The head is in it.
Status Bench::chains() {
    const fast::Buffers& b = model_.buffers();
    fast::Queue& queue = model_.queue();
    const fast::Layers layers(model_.dims(), model_.weights(), b, fast::fast_pages(model_.cache()),
                              FastOptions{});
    for (const uint32_t batch : options_.batches) {
        // Positions and tables are those of the last step.
        BERTH_ASSIGN(const auto fast, model_.remake({}, {}));
        BERTH_ASSIGN(const double ignored,
                     step_seconds(*fast, decode_items(batch, options_.contexts.front()), 1));
        (void)ignored;
        for (const bool attends : {false, true}) {
            BERTH_ASSIGN(const double seconds, recorded_seconds([&]() -> Status {
                             uint32_t index = 0;
                             for (const fast::FastLayer& w : model_.weights().layers) {
                                 BERTH_TRY(layers.product(queue, w.qkv, b.normed, b.qkv, batch,
                                                          fast::kStore));
                                 if (attends)
                                     BERTH_TRY(layers.attend(queue, batch, index));
                                 BERTH_TRY(layers.product(queue, std::span(&w.o, 1), b.mixed,
                                                          b.residual, batch, fast::kAdd));
                                 BERTH_TRY(layers.product(queue, w.gate_up, b.normed, b.active,
                                                          batch, fast::kSiluTimes));
                                 BERTH_TRY(layers.product(queue, std::span(&w.down, 1), b.active,
                                                          b.residual, batch, fast::kAdd));
                                 ++index;
                             }
                             return layers.product(queue, std::span(&model_.weights().head, 1),
                                                   b.normed, b.logits, batch, fast::kStore);
                         }));
            print(R"({{"bench":"chain","batch":{},"attention":{},"ms":{:.3f},"floor_ms":{:.3f}}})",
                  batch, attends, seconds * 1e3,
                  static_cast<double>(model_.weight_bytes()) / read_rate_ * 1e3);
        }
    }
    return {};
}

Status Bench::products() {
    const auto& layers = model_.weights().layers;
    const auto count = static_cast<uint32_t>(layers.size());
    using Parts = std::vector<fast::Matrix>;
    BERTH_TRY(product_shape(
        "qkv", false,
        [&](uint32_t i) { return Parts(std::begin(layers[i].qkv), std::end(layers[i].qkv)); },
        count));
    BERTH_TRY(product_shape("o", false, [&](uint32_t i) { return Parts{layers[i].o}; }, count));
    BERTH_TRY(product_shape(
        "gate_up", true,
        [&](uint32_t i) {
            return Parts(std::begin(layers[i].gate_up), std::end(layers[i].gate_up));
        },
        count));
    BERTH_TRY(
        product_shape("down", false, [&](uint32_t i) { return Parts{layers[i].down}; }, count));
    return product_shape("head", false, [&](uint32_t) { return Parts{model_.weights().head}; }, 4);
}

} // namespace berth::engine
