// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/arrivals.h"

#include "base/number.h"
#include "scheduler/cli/bench/colocate/dice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace berth::cli::bench {

namespace {

// Without a trace: medians and spreads like those of public traces of chats.
constexpr double kPromptMedian = 800, kPromptSigma = 0.8, kPromptMax = 8000;
constexpr double kTokensMedian = 180, kTokensSigma = 0.6, kTokensMax = 1000;

uint32_t log_normal(Dice& dice, double median, double sigma, double most) {
    const double drawn = median * std::exp(sigma * dice.normal());
    return static_cast<uint32_t>(std::clamp(std::round(drawn), 1.0, most));
}

} // namespace

Result<ArrivalProcess> arrival_process(const std::string& words, bool has_trace) {
    using Kind = ArrivalProcess::Kind;
    if (words == "poisson" || (words.empty() && !has_trace))
        return ArrivalProcess{Kind::kPoisson, 1};
    if (words == "trace" || words.empty()) {
        if (!has_trace)
            return fail(ErrorCode::kInvalidArgument, "--arrivals trace needs --trace FILE");
        return ArrivalProcess{Kind::kTrace, 1};
    }
    if (words == "gamma")
        return ArrivalProcess{Kind::kGamma, 0.5};
    if (words.starts_with("gamma:"))
        if (const auto shape = number_in<double>(std::string_view(words).substr(6));
            shape && *shape >= 0.01 && *shape <= 100)
            return ArrivalProcess{Kind::kGamma, *shape};
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--arrivals: expected trace, poisson, gamma or gamma:SHAPE with a "
                            "shape of 0.01 to 100, found '{}'",
                            words));
}

Result<Arrivals> unscaled_arrivals(const ColocateOptions& options) {
    BERTH_ASSIGN(const ArrivalProcess process,
                 arrival_process(options.arrivals, !options.trace.empty()));
    std::vector<TraceRow> rows;
    if (!options.trace.empty()) {
        BERTH_ASSIGN(rows, read_trace(options.trace, options.trace_row, options.requests));
    }
    Dice gaps(options.seed);
    Dice lengths(options.seed ^ 0x6c656e67746873);
    Arrivals arrivals(options.requests);
    double at = 0;
    for (size_t n = 0; n < arrivals.size(); ++n) {
        Arrival& one = arrivals[n];
        if (!rows.empty()) {
            one = {rows[n].at_s, rows[n].prompt_tokens, rows[n].tokens};
        } else {
            one.prompt_tokens = log_normal(lengths, kPromptMedian, kPromptSigma, kPromptMax);
            one.tokens = log_normal(lengths, kTokensMedian, kTokensSigma, kTokensMax);
        }
        if (process.kind != ArrivalProcess::Kind::kTrace) {
            one.due_s = at;
            at += process.kind == ArrivalProcess::Kind::kGamma ? gaps.gamma(process.shape)
                                                               : gaps.exponential();
        }
    }
    // A mean gap of exactly one second, and half a gap before the first.
    const double span = arrivals.back().due_s;
    for (Arrival& one : arrivals)
        one.due_s = span > 0 ? one.due_s / span * static_cast<double>(arrivals.size() - 1) : 0;
    return arrivals;
}

Scaled scaled(const Arrivals& unscaled, const Scale& scale, uint32_t context_tokens_max) {
    Scaled result;
    result.window_s = scale.window_s;
    result.token_scale = scale.tokens;
    result.arrivals.reserve(unscaled.size());
    const double gap = scale.window_s / static_cast<double>(unscaled.size());
    const double prompts = scale.prompts > 0 ? scale.prompts : scale.tokens;
    auto tokens = [](uint32_t count, double factor, double least) {
        return static_cast<uint32_t>(std::clamp(std::round(count * factor), least, 1e9));
    };
    for (const Arrival& one : unscaled) {
        Arrival now{(one.due_s + 0.5) * gap, tokens(one.prompt_tokens, prompts, 1),
                    tokens(one.tokens, scale.tokens, 2)};
        if (now.prompt_tokens + uint64_t{now.tokens} > context_tokens_max) {
            ++result.clipped;
            now.tokens = std::clamp<uint32_t>(now.tokens, 1, context_tokens_max / 2);
            now.prompt_tokens = std::min(now.prompt_tokens, context_tokens_max - now.tokens);
        }
        result.arrivals.push_back(now);
    }
    return result;
}

} // namespace berth::cli::bench
