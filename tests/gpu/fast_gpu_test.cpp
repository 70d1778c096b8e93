// SPDX-License-Identifier: Apache-2.0
// Goal: the fast path computes the model on a GPU as it does on the emulated one. Method: small
// random decoders of every kind, by kernels, library, torch's attention and graphs, step by step
// against decoder.h in float32 on the CPU (tests/engine/fast_twins.h). Skips itself without a GPU.
// Run it by itself: build/release/tests/fast_gpu_test
#include "engine_shim/reference/fast/cuda_queue.h"
#include "engine_shim/torch/tensors.h"
#include "tests/engine/fast_twins.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace berth::engine::fast {
namespace {

class FastOnGpu : public ::testing::Test {
  protected:
    void SetUp() override {
        if (const Status loaded = load_cuda_libraries(); !loaded)
            GTEST_SKIP() << loaded.error().message;
        at::globalContext().lazyInitDevice(at::kCUDA);
    }

    static Twins::Setting setting(const ModelConfig& config) {
        Twins::Setting made;
        made.config = config;
        made.device = at::Device(at::kCUDA, 0);
        made.limits = {48, 512, 48};
        made.blocks = 48 * kWideBlocks;
        made.contexts_max = 600;
        return made;
    }
    static Result<std::unique_ptr<Queue>> make_queue(const Buffers& buffers) {
        return make_cuda_queue({buffers.library});
    }

    static void generate(const Twins::Setting& setting, uint32_t sequences, uint32_t steps,
                         const char* what) {
        run_sequences(setting, make_queue, sequences, steps, what);
    }
};

TEST_F(FastOnGpu, EveryNumberOfSequencesByItsKernels) {
    for (const uint32_t sequences : {1U, 2U, 7U, 8U, 13U, 16U, 24U, 33U, 48U})
        generate(setting(wide_config(8, 2, 64)), sequences, 4, "4 heads a key head of 64");
}

TEST_F(FastOnGpu, EveryShapeOfHeads) {
    generate(setting(wide_config(8, 8, 64)), 5, 4, "1 head a key head of 64");
    generate(setting(wide_config(4, 2, 128)), 5, 4, "2 heads a key head of 128");
    generate(setting(wide_config(8, 1, 128)), 5, 4, "8 heads a key head of 128");
    generate(setting(wide_config(14, 2, 64)), 5, 4, "7 heads a key head of 64");
    generate(setting(wide_config(3, 1, 128)), 5, 4, "3 heads a key head of 128");
}

TEST_F(FastOnGpu, BiasesAndNormsOfHeads) {
    ModelConfig config = wide_config(8, 2, 128);
    config.qk_norm = true;
    generate(setting(config), 9, 4, "norms of heads");
    config.qk_norm = false;
    config.qkv_bias = true;
    generate(setting(config), 9, 4, "biases");
}

TEST_F(FastOnGpu, WithoutGraphsWithoutOverlapAndByTallerGroups) {
    Twins::Setting one = setting(wide_config(8, 2, 64));
    one.options.graphs = false;
    generate(one, 6, 3, "launches one by one");
    one.options = {};
    one.options.overlap = false;
    generate(one, 6, 3, "graphs without overlap");
    one.options = {};
    one.options.stream_rows = one.options.stream_rows_pair = 0;
    one.options.row_warps = 2;
    one.options.own_rows = 48;
    for (const uint32_t sequences : {5U, 12U, 30U, 48U})
        generate(one, sequences, 3, "two warps along the rows");
    one.options = {};
    one.options.stream_rows = one.options.stream_rows_pair = one.options.own_rows = 0;
    generate(one, 6, 3, "the library alone");
}

TEST_F(FastOnGpu, Fp8MatricesByEveryWay) {
    Twins::Setting one = setting(wide_config(8, 2, 128));
    one.fp8 = true;
    for (const uint32_t sequences : {1U, 12U, 30U, 40U})
        generate(one, sequences, 4, "FP8");
    one.options.stream_rows = one.options.stream_rows_pair = 0;
    one.options.row_warps = 2;
    generate(one, 20, 3, "FP8, two warps along the rows");
}

TEST_F(FastOnGpu, PiecesWithLooksGiveTheSame) {
    Twins::Setting one = setting(wide_config(8, 2, 64));
    one.looks = {std::chrono::microseconds(60), std::chrono::microseconds(60)};
    generate(one, 4, 5, "looks");
    one.looks = {std::chrono::microseconds(1), std::chrono::microseconds(1)};
    generate(one, 4, 5, "looks at each layer");
}

TEST_F(FastOnGpu, AttentionInSeveralKernelsAndInManyPieces) {
    Twins::Setting one = setting(wide_config(8, 2, 128));
    one.options.attend_all = false;
    generate(one, 9, 3, "attention in several kernels");
    one.options.attend_all = true;
    for (const uint32_t groups : {8U, 1056U}) {
        one.options.attend_groups = groups;
        generate(one, 9, 3, "attention in few and in many pieces");
    }
}

TEST_F(FastOnGpu, StreamedProductsByFewTilesAndNotAtAll) {
    Twins::Setting one = setting(wide_config(8, 2, 128));
    one.options.many_tiles = false;
    for (const uint32_t sequences : {1U, 12U, 30U})
        generate(one, sequences, 3, "streamed, few tiles");
    one.options.stream_rows = one.options.stream_rows_pair = 0;
    one.options.own_rows = 48;
    for (const uint32_t row_warps : {1U, 2U})
        for (const uint32_t sequences : {1U, 12U, 30U}) {
            one.options.row_warps = row_warps;
            generate(one, sequences, 3, "not streamed");
        }
    one.options = {};
    one.fp8 = true;
    one.options.many_tiles = false;
    for (const uint32_t sequences : {1U, 12U, 30U})
        generate(one, sequences, 3, "streamed, few tiles, FP8");
}

// More tiles than multiprocessors, so that groups take several and some take none.
TEST_F(FastOnGpu, WideMatricesAreSharedOutAmongGroupsThatStay) {
    ModelConfig config = wide_config(8, 2, 128);
    config.intermediate = 9280;
    config.vocab = 9001;
    for (const uint32_t sequences : {1U, 9U, 31U})
        generate(setting(config), sequences, 2, "wide");
    Twins::Setting fp8 = setting(config);
    fp8.fp8 = true;
    for (const uint32_t sequences : {2U, 31U})
        generate(fp8, sequences, 2, "wide, FP8");
}

// The gate closes and opens all the time.
TEST_F(FastOnGpu, ADeviceThatLooksByItselfGivesTheSame) {
    struct alignas(4096) Page {
        std::atomic<uint32_t> word = 1;
    };
    const auto page = std::make_unique<Page>();
    Twins::Setting one = setting(wide_config(8, 2, 64));
    one.options.device_looks = true;
    one.gate_word = &page->word;
    one.looks = {std::chrono::microseconds(1), std::chrono::microseconds(1)};
    generate(one, 4, 5, "looks by the device");
    const std::jthread closing([&page](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
            page->word.fetch_add(1);
            for (int i = 0; i < 20'000 && !stop.stop_requested(); ++i)
                std::this_thread::yield();
        }
    });
    generate(one, 4, 8, "looks by the device at a gate that closes");
}

} // namespace
} // namespace berth::engine::fast
