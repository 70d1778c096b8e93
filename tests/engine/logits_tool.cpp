// SPDX-License-Identifier: Apache-2.0
// berth-logits: what the engine's mathematics make of a checkpoint, for comparison with other
// implementations.
//
//   berth-logits --model DIR --tokens 1,2,3 --output FILE   logits after each token, float32 rows
//   berth-logits --model DIR --tokens 1,2,3 --greedy N      prints N greedy tokens and their speed
#include "tests/engine/checkpoint_source.h"

#include "engine_shim/reference/model/scheduler.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <fstream>
#include <numeric>

namespace {

using namespace berth;
using namespace berth::engine;

struct Options {
    std::string model;
    std::vector<int32_t> tokens;
    std::string output;
    uint32_t greedy = 0;
    uint32_t chunk = 512;
    bool batch_invariant = false;
};

// Prompt in chunks, then the last tokens one by one, so that both ways through attention show.
Status write_logits(const Options& options, TestModel& model) {
    std::ofstream out(options.output, std::ios::binary);
    std::vector<uint32_t> blocks(model.blocks);
    std::iota(blocks.begin(), blocks.end(), 0U);
    const auto count = static_cast<uint32_t>(options.tokens.size());
    for (uint32_t begin = 0; begin < count;) {
        // Every prefix is a query of its own: a chunk gives the logits of its last token.
        StepItem item;
        item.position = begin;
        item.blocks = blocks;
        item.samples = true;
        item.decode = begin + 1 == count || begin % 5 == 4;
        const uint32_t tokens =
            item.decode ? 1 : std::min({options.chunk, count - begin, 4 - begin % 5});
        item.tokens = std::span(options.tokens).subspan(begin, tokens);
        item.rope_length = count;
        BERTH_ASSIGN(const auto logits, model.runner->logits(std::span(&item, 1), {}));
        const int64_t position = begin + tokens - 1;
        out.write(reinterpret_cast<const char*>(&position), sizeof position);
        out.write(static_cast<const char*>(logits->data_ptr()),
                  static_cast<std::streamsize>(logits->nbytes()));
        begin += tokens;
    }
    return out.good() ? Status() : fail_errno(options.output);
}

Status generate(const Options& options, TestModel& model) {
    SchedulerLimits limits;
    limits.prefill_tokens = options.chunk;
    limits.block_tokens = kTestBlockTokens;
    limits.batch_invariant = options.batch_invariant;
    Scheduler scheduler(limits, {});
    scheduler.allocator().resize(model.blocks);
    GenerationRequest request;
    request.id = "greedy";
    request.prompt = options.tokens;
    request.max_new_tokens = options.greedy;
    request.temperature = 0;
    std::vector<int32_t> tokens;
    auto first = std::chrono::steady_clock::now();
    scheduler.add(request, [&](const TokenEvent& event) {
        if (tokens.empty())
            first = std::chrono::steady_clock::now();
        tokens.push_back(event.token);
    });
    while (!scheduler.idle())
        BERTH_TRY(scheduler.step(*model.runner, {}));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - first;
    fmt::print("{}\n", fmt::join(tokens, ","));
    fmt::print(stderr, "{:.1f} tokens/s\n", static_cast<double>(tokens.size() - 1) / took.count());
    return {};
}

Status run(const Options& options) {
    RunnerOptions runner;
    runner.batch_invariant = options.batch_invariant;
    runner.chunk_rows = options.chunk;
    const auto tokens = static_cast<uint32_t>(options.tokens.size()) + options.greedy + 1;
    BERTH_ASSIGN(TestModel model,
                 open_test_model(options.model, tokens / kTestBlockTokens + 2, runner));
    return options.greedy > 0 ? generate(options, model) : write_logits(options, model);
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    int threads = 0;
    CLI::App app("Logits and greedy tokens of a checkpoint");
    app.add_option("--model", options.model, "Checkpoint folder")->required();
    app.add_option("--tokens", options.tokens, "Token ids")->delimiter(',')->required();
    app.add_option("--output", options.output, "File: rows of int64 position and float32 logits");
    app.add_option("--greedy", options.greedy, "Tokens to generate");
    app.add_option("--chunk", options.chunk, "Prefill chunk");
    app.add_flag("--batch-invariant", options.batch_invariant);
    app.add_option("--threads", threads);
    CLI11_PARSE(app, argc, argv);
    if (threads > 0)
        at::set_num_threads(threads);
    if (const Status done = run(options); !done) {
        fmt::print(stderr, "berth-logits: {}\n", done.error().message);
        return 1;
    }
    return 0;
}
