// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/main/bench_parts.h"
#include "engine_shim/reference/model/decoder.h"

#include <ATen/ATen.h>

namespace berth::engine {

using fast::FastOptions;
using fast::LookLimits;

std::vector<StepItem> Bench::decode_items(uint32_t batch, uint32_t context) {
    std::vector<StepItem> items(batch);
    while (blocks_.size() < batch)
        blocks_.push_back(model_.blocks_of(static_cast<uint32_t>(blocks_.size())));
    for (uint32_t i = 0; i < batch; ++i) {
        items[i].tokens = std::span(&token_, 1);
        items[i].position = context - 1;
        items[i].blocks = blocks_[i];
        items[i].decode = items[i].samples = true;
    }
    return items;
}

Result<double> Bench::step_seconds(fast::FastModel& fast, const std::vector<StepItem>& items,
                                   uint32_t rounds, double* worst) {
    std::vector<double> times;
    for (uint32_t round = 0; round < rounds; ++round) {
        const auto begun = Clock::now();
        BERTH_ASSIGN(const auto outcome, fast.step(items, {}));
        if (round >= rounds / 4 && outcome)
            times.push_back(seconds_since(begun));
    }
    if (worst != nullptr)
        *worst = *std::max_element(times.begin(), times.end());
    return median(times);
}

Status Bench::decode() {
    struct Way {
        std::string name;
        FastOptions options;
    };
    FastOptions plain, graph, few, apart, no_overlap, pairs, greedy, library;
    plain.graphs = false;
    few.many_tiles = false;
    greedy.stream_input_max = UINT32_MAX;
    apart.attend_all = false;
    no_overlap.overlap = false;
    pairs.stream_rows = library.stream_rows = library.stream_rows_pair = 0;
    pairs.own_rows = pairs.own_rows_fp8 = library.own_rows = library.own_rows_fp8 = 0;
    std::vector<Way> ways = {{"plain", plain},
                             {"graph", graph},
                             {"graph, few tiles", few},
                             {"graph, attention apart", apart},
                             {"graph, library but for pairs", pairs},
                             {"graph, all streamed", greedy},
                             {"graph, library", library},
                             {"graph, no overlap", no_overlap}};
    for (const uint32_t groups : {132U, 264U, 396U, 528U, 1056U}) {
        ways.push_back({fmt::format("graph, {} groups", groups), graph});
        ways.back().options.attend_groups = groups;
    }
    for (const Way& way : ways) {
        BERTH_ASSIGN(const auto fast, model_.remake(way.options, {}));
        for (const uint32_t batch : options_.batches)
            for (const uint32_t context : options_.contexts) {
                const auto items = decode_items(batch, context);
                if (way.options.graphs && context == options_.contexts.front()) {
                    BERTH_ASSIGN(const double first, step_seconds(*fast, items, 1));
                    (void)first;
                    BERTH_TRY(fast->record_now(
                        fast::GraphShelf::rows_for(batch, model_.setting().sequences)));
                }
                double worst = 0;
                BERTH_ASSIGN(const double seconds,
                             step_seconds(*fast, items, options_.rounds, &worst));
                const double floor =
                    static_cast<double>(model_.weight_bytes() + model_.kv_bytes(batch * context)) /
                    read_rate_;
                print(R"({{"bench":"decode","way":"{}","batch":{},"context":{},"ms":{:.3f},)"
                      R"("worst_ms":{:.3f},"floor_ms":{:.3f},"ratio":{:.3f},"graph_steps":{}}})",
                      way.name, batch, context, seconds * 1e3, worst * 1e3, floor * 1e3,
                      seconds / floor, fast->graph_steps());
            }
    }
    return {};
}

double Bench::prefill_flops(uint32_t tokens) const {
    const fast::Dimensions& dims = model_.dims();
    const double products =
        2.0 * dims.layers * dims.hidden *
        (static_cast<double>(dims.qkv_width()) + dims.query_width() + 3.0 * dims.intermediate) *
        tokens;
    const double attention =
        2.0 * dims.layers * dims.query_width() * static_cast<double>(tokens) * tokens;
    return products + attention;
}

Result<double> Bench::prefill_seconds(fast::FastModel& fast, uint32_t tokens, uint32_t chunk) {
    prompt_.resize(tokens);
    for (uint32_t i = 0; i < tokens; ++i)
        prompt_[i] = static_cast<int32_t>(i * 97 % model_.dims().vocab);
    const std::vector<uint32_t> blocks = model_.blocks_of(0);
    std::vector<double> times;
    for (uint32_t round = 0; round < 7; ++round) {
        const auto begun = Clock::now();
        for (uint32_t at = 0; at < tokens; at += chunk) {
            StepItem item;
            const uint32_t count = std::min(chunk, tokens - at);
            item.tokens = std::span(prompt_).subspan(at, count);
            item.position = at;
            item.blocks = blocks;
            item.samples = at + count == tokens;
            BERTH_ASSIGN(const auto outcome, fast.step(std::span(&item, 1), {}));
            if (!outcome)
                return fail(ErrorCode::kInternal, "a prefill was abandoned");
        }
        times.push_back(seconds_since(begun));
    }
    return median(times);
}

Status Bench::prefill() {
    for (const bool looks : {false, true}) {
        const LookLimits limits =
            looks ? LookLimits{std::chrono::microseconds(450), std::chrono::microseconds(900)}
                  : LookLimits{};
        BERTH_ASSIGN(const auto fast, model_.remake({}, limits));
        for (const uint32_t chunk : {2048U, 512U}) {
            if (chunk > model_.setting().chunk_rows)
                continue;
            BERTH_ASSIGN(const double seconds, prefill_seconds(*fast, 2048, chunk));
            const double rate = prefill_flops(2048) / seconds;
            print(R"({{"bench":"prefill","looks":{},"tokens":2048,"chunk":{},"ms":{:.2f},)"
                  R"("operations_per_second":{:.4g},"of_matrix_rate":{:.3f}}})",
                  looks, chunk, seconds * 1e3, rate, rate / matrix_rate_);
        }
    }
    return {};
}

// What looking costs: pieces of several lengths beside the whole step, and how long a piece is.
Status Bench::looks() {
    for (const uint32_t batch : options_.batches) {
        const uint32_t context = options_.contexts.front();
        const auto items = decode_items(batch, context);
        for (const int64_t limit : {0, 150, 300, 450, 1000}) {
            const LookLimits limits{std::chrono::microseconds(limit),
                                    std::chrono::microseconds(2 * limit)};
            BERTH_ASSIGN(const auto fast, model_.remake({}, limits));
            for (int i = 0; i < 12; ++i) { // paces itself, then records
                BERTH_ASSIGN(const auto outcome, fast->step(items, {}));
                (void)outcome;
            }
            BERTH_TRY(
                fast->record_now(fast::GraphShelf::rows_for(batch, model_.setting().sequences)));
            std::vector<double> gaps;
            auto last = Clock::now();
            uint64_t looks = 0;
            const LayerHook hook = [&](uint32_t layer) {
                if (layer > 0)
                    gaps.push_back(seconds_since(last));
                last = Clock::now();
                ++looks;
                return true;
            };
            std::vector<double> times;
            for (uint32_t round = 0; round < options_.rounds; ++round) {
                const auto begun = Clock::now();
                BERTH_ASSIGN(const auto outcome, fast->step(items, hook));
                (void)outcome;
                gaps.push_back(seconds_since(last));
                times.push_back(seconds_since(begun));
            }
            print(R"({{"bench":"looks","batch":{},"context":{},"limit_us":{},"looks_a_step":{},)"
                  R"("ms":{:.3f},"longest_piece_us":{:.0f},"median_piece_us":{:.0f}}})",
                  batch, context, limit, looks / options_.rounds, median(times) * 1e3,
                  *std::max_element(gaps.begin(), gaps.end()) * 1e6, median(gaps) * 1e6);
        }
    }
    return {};
}

// The same prompt and token by the plain way, in the model's own dtype.
Status Bench::check() {
    BERTH_ASSIGN(const auto fast, model_.remake({}, {}));
    constexpr uint32_t kTokens = 300;
    BERTH_ASSIGN(const double ignored, prefill_seconds(*fast, kTokens, 256));
    (void)ignored;
    const auto logits_of = [&](const float* at) {
        return at::for_blob(const_cast<float*>(at), {1, int64_t{model_.dims().vocab}})
            .options(at::TensorOptions().dtype(at::kFloat).device(at::Device(at::kCUDA, 0)))
            .target_device(at::Device(at::kCUDA, 0))
            .make_tensor()
            .clone();
    };
    const std::vector<uint32_t> blocks = model_.blocks_of(0);
    StepItem item;
    item.tokens = std::span(&token_, 1);
    item.position = kTokens;
    item.blocks = blocks;
    item.samples = item.decode = true;
    for (const char* way : {"plain", "graph"}) {
        if (way[0] == 'g') // after the plain one
            BERTH_TRY(fast->record_now(1));
        BERTH_ASSIGN(const auto outcome, fast->step(std::span(&item, 1), {}));
        const at::Tensor mine = logits_of(outcome->logits);
        const ForwardItem forwarded{item.tokens, item.position, item.blocks, kTokens, true};
        const at::Tensor theirs = forward(model_.setting().config, model_.decoder(), model_.cache(),
                                          std::span(&forwarded, 1), {}, {});
        const double spread = theirs.std().item<double>();
        const double worst = (mine - theirs).abs().max().item<double>();
        print(R"({{"bench":"check","way":"{}","worst_of_spread":{:.4f},"same_token":{}}})", way,
              worst / spread, mine.argmax().item<int64_t>() == theirs.argmax().item<int64_t>());
        if (!(worst < 0.25 * spread))
            return fail(ErrorCode::kMismatch,
                        fmt::format("the fast path's logits differ by {} of a spread of {}", worst,
                                    spread));
    }
    return {};
}

} // namespace berth::engine
