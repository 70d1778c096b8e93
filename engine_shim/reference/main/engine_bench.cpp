// SPDX-License-Identifier: Apache-2.0
// berth-engine-bench: how fast the engine's fast path is on this GPU, beside floors that are
// measured in the same run. One JSON object a line.
//
//   berth-engine-bench [--shape qwen3-8b] [--fp8] [--only
//   read,products,decode,prefill,check,looks,gate]
#include "engine_shim/reference/main/bench_parts.h"
#include "engine_shim/reference/main/torch_start.h"

#include <CLI/CLI.hpp>
#include <c10/core/InferenceMode.h>

#include <set>
#include <string_view>

namespace {

using namespace berth;
using namespace berth::engine;

constexpr uint64_t kDeviceBytes = uint64_t{1} << 40; // no cap on torch's memory

// torch throws.
Status guarded(const std::function<Status()>& part) {
    try {
        return part();
    } catch (const std::exception& thrown) {
        const std::string_view text = thrown.what();
        return fail(ErrorCode::kInternal, std::string(text.substr(0, text.find('\n'))));
    }
}

Status run(const BenchOptions& options) {
    BERTH_TRY(start_torch_cuda(kDeviceBytes, kDeviceBytes));
    const c10::InferenceMode inference;
    BenchModel::Setting setting;
    BERTH_ASSIGN(setting.config, bench_shape(options.shape));
    setting.fp8 = options.fp8;
    setting.options.attend_groups = 1056; // room for the most that is tried
    setting.sequences = *std::max_element(options.batches.begin(), options.batches.end());
    setting.context =
        std::max(2304U, *std::max_element(options.contexts.begin(), options.contexts.end()) + 64);
    const auto begun = Clock::now();
    BERTH_ASSIGN(const auto model, BenchModel::make(setting));
    print(R"({{"bench":"model","shape":"{}","fp8":{},"weight_bytes":{},"made_in_seconds":{:.1f}}})",
          options.shape, options.fp8, model->weight_bytes(), seconds_since(begun));
    Bench bench(options, *model);
    const std::set<std::string> only(options.only.begin(), options.only.end());
    using Part = std::pair<const char*, Status (Bench::*)()>;
    std::string failed;
    for (const auto& [name, part] : {Part{"read", &Bench::read}, Part{"multiply", &Bench::multiply},
                                     Part{"check", &Bench::check}, Part{"decode", &Bench::decode},
                                     Part{"chains", &Bench::chains}, Part{"gate", &Bench::gate},
                                     Part{"prefill", &Bench::prefill}, Part{"looks", &Bench::looks},
                                     Part{"products", &Bench::products}}) {
        const bool is_floor =
            name == std::string_view("read") || name == std::string_view("multiply");
        if (!is_floor && !only.empty() && !only.contains(name))
            continue;
        const auto started = Clock::now();
        const Status done = guarded([&] { return (bench.*part)(); });
        print(R"({{"bench":"took","part":"{}","seconds":{:.1f},"ok":{}}})", name,
              seconds_since(started), done.has_value());
        if (done)
            continue;
        // The others are measured all the same.
        fmt::print(stderr, "berth-engine-bench: {}: {}\n", name, done.error().message);
        failed += failed.empty() ? name : std::string(", ") + name;
    }
    if (!failed.empty())
        return fail(ErrorCode::kInternal, fmt::format("failed: {}", failed));
    return {};
}

} // namespace

int main(int argc, char** argv) {
    BenchOptions options;
    CLI::App app("How fast the engine computes on this GPU");
    app.add_option("--shape", options.shape, "qwen3-8b, qwen3-0.6b, llama-3-8b, qwen2.5-0.5b");
    app.add_flag("--fp8", options.fp8, "Matrices in FP8 by blocks");
    app.add_option("--batch", options.batches, "Sequences that decode")->delimiter(',');
    app.add_option("--context", options.contexts, "Tokens of each")->delimiter(',');
    app.add_option("--only", options.only, "check, decode, chains, gate, prefill, looks, products")
        ->delimiter(',');
    app.add_option("--rounds", options.rounds, "Steps of each figure");
    CLI11_PARSE(app, argc, argv);
    try {
        if (const Status done = run(options); !done) {
            fmt::print(stderr, "berth-engine-bench: {}\n", done.error().message);
            return 1;
        }
    } catch (const std::exception& thrown) {
        fmt::print(stderr, "berth-engine-bench: {}\n", thrown.what());
        return 1;
    }
    return 0;
}
