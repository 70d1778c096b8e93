// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/phase_result.h"

#include "scheduler/cli/bench/figures.h"

#include <algorithm>

namespace berth::cli::bench {

namespace {

const std::vector<double> kPercents{50, 90, 99};

std::string percent_name(double percent) {
    return "p" + std::to_string(static_cast<int>(percent));
}

json::object ratios_json(const Samples& these, const Samples& those, const Counting& counting) {
    json::object shown;
    const std::vector<Ratio> ratios =
        quantile_ratios(these, those, kPercents, counting.resamples, counting.seed);
    for (size_t n = 0; n < kPercents.size(); ++n)
        shown[percent_name(kPercents[n])] = json::object{
            {"ratio", ratios[n].value}, {"low", ratios[n].low}, {"high", ratios[n].high}};
    return shown;
}

json::object latency_json(const Samples& samples, const Samples* alone, const Counting& counting) {
    const std::vector<double> all = flat(samples);
    json::object shown{{"samples", all.size()}};
    for (double percent : kPercents)
        shown[percent_name(percent)] = percentile(all, percent);
    shown["max"] = percentile(all, 100);
    // p99 of few samples is one of the slowest few: which, says how much it can tell.
    const auto [low, high] = quantile_ranks(all.size(), 99);
    shown["p99LiesBetweenRanks"] = json::array{low, high};
    shown["besideAlone"] = nullptr;
    if (alone != nullptr)
        shown["besideAlone"] = ratios_json(samples, *alone, counting);
    return shown;
}

json::object answers_json(const PhaseResult& result, const Baseline& baseline) {
    size_t done = 0, tokens = 0, silent = 0;
    double late_ms = 0;
    std::string first_error;
    for (const Answer& answer : result.outcome.answers) {
        if (!answer.done) {
            if (first_error.empty())
                first_error = answer.error;
            continue;
        }
        ++done;
        tokens += answer.tokens;
        silent += answer.tokens - std::min<uint64_t>(answer.tokens, answer.full_s.size());
        late_ms = std::max(late_ms, (answer.sent_s - answer.due_s) * 1e3);
    }
    json::object shown{{"requests", result.outcome.answers.size()},
                       {"answered", done},
                       {"tokens", tokens},
                       // Tokens that came without an event of their own.
                       {"tokensUnseen", silent},
                       {"sentLateMsMax", late_ms},
                       {"busy", busy_part(result)},
                       {"mismatches", nullptr}};
    if (baseline.online != nullptr)
        shown["mismatches"] = mismatches(result, baseline);
    if (!first_error.empty())
        shown["firstError"] = first_error;
    return shown;
}

json::object interval_json(const Ratio& ratio) {
    return {{"low", ratio.low}, {"high", ratio.high}};
}

// Of fewer whole seconds a resample does not tell how much they vary.
constexpr size_t kSecondsMin = 8;

// Null where a phase was too short to tell.
json::value rate_interval(const BatchRate& rate, const BatchRate* alone, double over,
                          const Counting& counting) {
    if (rate.by_second.size() < kSecondsMin ||
        (alone != nullptr && alone->by_second.size() < kSecondsMin))
        return nullptr;
    const Ratio ratio =
        mean_ratio(rate.by_second, alone != nullptr ? alone->by_second : std::vector<double>(),
                   counting.resamples, counting.seed);
    return interval_json({ratio.value / over, ratio.low / over, ratio.high / over});
}

json::object attained_json(const Latencies& latencies, const LatencyTargets& targets) {
    size_t kept = 0;
    for (size_t n = 0; n < latencies.ttft.size(); ++n) {
        const bool first =
            !latencies.ttft[n].empty() && latencies.ttft[n].front() <= targets.ttft_ms;
        const bool later =
            latencies.tpot[n].empty() || latencies.tpot[n].front() <= targets.tpot_ms;
        kept += first && later ? 1 : 0;
    }
    const Ratio part = part_of(kept, latencies.ttft.size());
    return {{"ttftMs", targets.ttft_ms},
            {"tpotMs", targets.tpot_ms},
            {"attained", part.value},
            {"attainedInterval", interval_json(part)}};
}

json::object batch_json(const BatchRate& rate, const Baseline& baseline, bool beside_online,
                        const Counting& counting) {
    json::object shown{{"tokensPerSecond", rate.tokens_per_s},
                       {"tokensPerSecondInterval", rate_interval(rate, nullptr, 1, counting)},
                       {"prefilledPerSecond", rate.prefilled_per_s},
                       {"gatePauses", rate.gate_pauses},
                       {"sequencesPreempted", rate.sequences_preempted},
                       {"ofAlone", nullptr},
                       {"ofAloneInterval", nullptr},
                       {"ofIdleTimesWorth", nullptr},
                       {"ofIdleTimesWorthInterval", nullptr}};
    const auto alone =
        baseline.batch != nullptr ? batch_rate(*baseline.batch) : std::optional<BatchRate>();
    if (!alone || alone->tokens_per_s <= 0)
        return shown;
    const double part = rate.tokens_per_s / alone->tokens_per_s;
    shown["ofAlone"] = part;
    shown["ofAloneInterval"] = rate_interval(rate, &*alone, 1, counting);
    if (beside_online && baseline.online != nullptr)
        if (const double idle = 1 - busy_part(*baseline.online); idle > 0) {
            shown["ofIdleTimesWorth"] = part / idle;
            shown["ofIdleTimesWorthInterval"] = rate_interval(rate, &*alone, idle, counting);
        }
    return shown;
}

} // namespace

Latencies latencies_of(const PhaseResult& result) {
    Latencies all;
    auto one = [](std::optional<double> value) {
        return value ? std::vector<double>{*value} : std::vector<double>{};
    };
    for (const Answer& answer : result.outcome.answers) {
        all.ttft.push_back(one(answer.first_token_ms()));
        all.tpot.push_back(one(answer.per_token_ms()));
        all.gap.push_back(answer.gaps_ms());
    }
    return all;
}

double busy_part(const PhaseResult& result) {
    std::vector<std::pair<double, double>> spans;
    for (const Answer& answer : result.outcome.answers)
        if (answer.done)
            spans.emplace_back(answer.due_s, std::min(answer.end_s, result.window_s));
    std::ranges::sort(spans);
    double busy = 0, until = 0;
    for (const auto& [from, to] : spans) {
        busy += std::max(0.0, to - std::max(from, until));
        until = std::max(until, to);
    }
    return result.window_s > 0 ? busy / result.window_s : 0;
}

namespace {

// Of points one behind the other; a rest of less than a second is left out.
std::vector<double> rates_by_second(const BatchPoint* from, const BatchPoint* last) {
    std::vector<double> rates;
    for (const BatchPoint* to = from; to <= last; ++to) {
        const double seconds = to->at_s - from->at_s;
        if (seconds < 1)
            continue;
        rates.push_back(static_cast<double>(to->counters.tokens - from->counters.tokens) / seconds);
        from = to;
    }
    return rates;
}

} // namespace

std::optional<BatchRate> batch_rate(const PhaseResult& result) {
    const BatchPoint* first = nullptr;
    const BatchPoint* last = nullptr;
    for (const BatchPoint& point : result.outcome.batch) {
        if (point.at_s > result.window_s)
            break;
        if (first == nullptr)
            first = &point;
        last = &point;
    }
    if (first == nullptr || last->at_s <= first->at_s)
        return std::nullopt;
    const double seconds = last->at_s - first->at_s;
    const BatchCounters& from = first->counters;
    const BatchCounters& to = last->counters;
    return BatchRate{static_cast<double>(to.tokens - from.tokens) / seconds,
                     static_cast<double>(to.prefilled - from.prefilled) / seconds,
                     to.gate_pauses - from.gate_pauses,
                     to.sequences_preempted - from.sequences_preempted,
                     rates_by_second(first, last)};
}

size_t mismatches(const PhaseResult& result, const Baseline& baseline) {
    size_t different = 0;
    const std::vector<Answer>& alone = baseline.online->outcome.answers;
    for (size_t n = 0; n < std::min(alone.size(), result.outcome.answers.size()); ++n) {
        const Answer& answer = result.outcome.answers[n];
        different += answer.done && alone[n].done && answer.text != alone[n].text ? 1 : 0;
    }
    return different;
}

json::object phase_json(const PhaseResult& result, const Baseline& baseline,
                        const Counting& counting) {
    json::object line{{"bench", "colocate"}, {"phase", result.plan.name}};
    if (!result.skipped.empty()) {
        line["skipped"] = result.skipped;
        return line;
    }
    if (!result.error.empty())
        line["error"] = result.error;
    if (result.outcome_is_empty())
        return line;
    line["windowSeconds"] = result.window_s;
    line["node"] = result.node;
    // Engines that were started anew are not those that alone was measured with.
    line["aloneOnSameNode"] = nullptr;
    if (baseline.online != nullptr)
        line["aloneOnSameNode"] = baseline.online->node == result.node;
    line["compute"] = result.plan.compute;
    line["batchShareWhenBusy"] = result.plan.share;
    if (result.plan.online) {
        line["online"] = answers_json(result, baseline);
        const Latencies latencies = latencies_of(result);
        std::optional<Latencies> alone;
        if (baseline.online != nullptr && baseline.online != &result)
            alone = latencies_of(*baseline.online);
        line["ttftMs"] = latency_json(latencies.ttft, alone ? &alone->ttft : nullptr, counting);
        line["tpotMs"] = latency_json(latencies.tpot, alone ? &alone->tpot : nullptr, counting);
        line["gapMs"] = latency_json(latencies.gap, alone ? &alone->gap : nullptr, counting);
        if (baseline.targets.ttft_ms > 0)
            line["slo"] = attained_json(latencies, baseline.targets);
    }
    if (const auto rate = batch_rate(result))
        line["batch"] =
            batch_json(*rate, baseline, result.plan.online && result.plan.batch, counting);
    line["preempted"] = json::object{{"count", result.preempted.count},
                                     {"bytesFreed", result.preempted.bytes_freed},
                                     {"bytesSaved", result.preempted.bytes_saved},
                                     {"bytesMoved", result.preempted.bytes_moved}};
    if (result.joules) {
        line["joules"] = *result.joules;
        line["watts"] = result.joules_s > 0 ? *result.joules / result.joules_s : 0;
    }
    return line;
}

} // namespace berth::cli::bench
