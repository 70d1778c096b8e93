// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/plots.h"

#include "scheduler/cli/bench/colocate/svg.h"
#include "scheduler/cli/bench/figures.h"

#include <algorithm>
#include <map>

namespace berth::cli::bench {

namespace {

// No more points than can be seen.
constexpr size_t kPointsMax = 600;

std::vector<std::pair<double, double>> distribution(const Samples& samples) {
    std::vector<double> all = flat(samples);
    std::ranges::sort(all);
    std::vector<std::pair<double, double>> points;
    const size_t step = std::max<size_t>(1, all.size() / kPointsMax);
    for (size_t n = 0; n < all.size(); n += step)
        points.emplace_back(all[n], static_cast<double>(n + 1) / static_cast<double>(all.size()));
    if (!all.empty())
        points.emplace_back(all.back(), 1.0);
    return points;
}

Chart distribution_chart(const char* title, const std::vector<PhaseResult>& results,
                         Samples Latencies::* which) {
    Chart chart;
    chart.title = title;
    chart.x_label = "milliseconds";
    chart.y_label = "part of all";
    chart.x_is_logarithmic = true;
    chart.y_most = 1;
    std::vector<double> all;
    for (const PhaseResult& result : results) {
        if (!result.was_run() || !result.plan.online)
            continue;
        const Samples samples = latencies_of(result).*which;
        chart.lines.push_back({result.plan.name, distribution(samples), false, false});
        const std::vector<double> values = flat(samples);
        all.insert(all.end(), values.begin(), values.end());
    }
    // What was read together lies apart by next to nothing, and would fill the page.
    chart.x_most = percentile(all, 100);
    chart.x_least = std::max(percentile(all, 0), percentile(all, 50) / 30);
    return chart;
}

Chart in_flight_chart(const PhaseResult& result, double end_s) {
    std::map<double, int> changes;
    for (const Answer& answer : result.outcome.answers)
        if (answer.end_s > 0) {
            ++changes[answer.due_s];
            --changes[answer.end_s];
        }
    Chart chart;
    chart.title = result.plan.name + ": online requests in flight";
    chart.x_label = "seconds";
    chart.y_label = "requests";
    chart.x_most = end_s;
    Chart::Line line{"online", {{0.0, 0.0}}, true, true};
    int now = 0;
    for (const auto& [at, change] : changes) {
        now += change;
        line.points.emplace_back(at, now);
    }
    line.points.emplace_back(end_s, now);
    chart.lines.push_back(std::move(line));
    return chart;
}

Chart batch_chart(const PhaseResult& result, double end_s) {
    Chart chart;
    chart.title = result.plan.name + ": batch";
    chart.x_label = "seconds";
    chart.y_label = "tokens in 0.1 s";
    chart.x_most = end_s;
    Chart::Line line{"batch", {{0.0, 0.0}}, true, true};
    const std::vector<BatchPoint>& points = result.outcome.batch;
    for (size_t n = 1; n < points.size(); ++n) {
        const double seconds = points[n].at_s - points[n - 1].at_s;
        const auto tokens =
            static_cast<double>(points[n].counters.tokens - points[n - 1].counters.tokens);
        if (seconds > 0)
            line.points.emplace_back(points[n - 1].at_s, tokens / seconds / 10);
    }
    chart.lines.push_back(std::move(line));
    return chart;
}

} // namespace

std::string latency_page(const std::vector<PhaseResult>& results) {
    return svg_page({distribution_chart("To the first token", results, &Latencies::ttft),
                     distribution_chart("Per token after the first, of each request", results,
                                        &Latencies::tpot),
                     distribution_chart("Between two tokens", results, &Latencies::gap)});
}

std::string timeline_page(const PhaseResult& result) {
    double end_s = result.window_s;
    for (const Answer& answer : result.outcome.answers)
        end_s = std::max(end_s, answer.end_s);
    std::vector<Chart> charts;
    if (result.plan.online)
        charts.push_back(in_flight_chart(result, end_s));
    if (!result.outcome.batch.empty())
        charts.push_back(batch_chart(result, end_s));
    return svg_page(charts);
}

} // namespace berth::cli::bench
