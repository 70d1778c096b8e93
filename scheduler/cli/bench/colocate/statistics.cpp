// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/statistics.h"

#include "scheduler/cli/bench/colocate/dice.h"
#include "scheduler/cli/bench/figures.h"

#include <algorithm>
#include <cmath>

namespace berth::cli::bench {

namespace {

constexpr double kTail = 0.025;

// As percentile() of figures.h, for values that are used for nothing else.
double quantile_in_place(std::vector<double>& values, double percent) {
    const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
    const size_t index = std::min(static_cast<size_t>(std::max(rank, 1.0)), values.size()) - 1;
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(index);
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

double ratio_or_zero(double value, double to) {
    return to > 0 ? value / to : 0;
}

} // namespace

std::vector<double> flat(const Samples& samples) {
    std::vector<double> all;
    for (const auto& of_one : samples)
        all.insert(all.end(), of_one.begin(), of_one.end());
    return all;
}

std::vector<Ratio> quantile_ratios(const Samples& these, const Samples& those,
                                   const std::vector<double>& percents, size_t resamples,
                                   uint64_t seed) {
    std::vector<size_t> pairs;
    for (size_t n = 0; n < std::min(these.size(), those.size()); ++n)
        if (!these[n].empty() && !those[n].empty())
            pairs.push_back(n);
    std::vector<Ratio> ratios(percents.size());
    if (pairs.empty() || resamples == 0)
        return ratios;
    std::vector<double> here, there;
    auto gather = [&](auto&& drawn) {
        here.clear();
        there.clear();
        for (size_t n = 0; n < pairs.size(); ++n) {
            const size_t of = drawn(n);
            here.insert(here.end(), these[of].begin(), these[of].end());
            there.insert(there.end(), those[of].begin(), those[of].end());
        }
    };
    auto ratio_at = [&](double percent) {
        return ratio_or_zero(quantile_in_place(here, percent), quantile_in_place(there, percent));
    };
    gather([&](size_t n) { return pairs[n]; });
    for (size_t n = 0; n < percents.size(); ++n)
        ratios[n].value = ratio_at(percents[n]);
    Dice dice(seed);
    std::vector<std::vector<double>> drawn(percents.size());
    for (size_t round = 0; round < resamples; ++round) {
        gather([&](size_t) { return pairs[dice.below(pairs.size())]; });
        for (size_t n = 0; n < percents.size(); ++n)
            drawn[n].push_back(ratio_at(percents[n]));
    }
    for (size_t n = 0; n < percents.size(); ++n) {
        ratios[n].low = percentile(drawn[n], 100 * kTail);
        ratios[n].high = percentile(drawn[n], 100 * (1 - kTail));
    }
    return ratios;
}

// How many samples lie below the true percentile is binomial.
std::pair<size_t, size_t> quantile_ranks(size_t count, double percent) {
    if (count == 0)
        return {0, 0};
    const double p = percent / 100;
    const auto n = static_cast<double>(count);
    double below = 0; // the chance of at most k - 1
    size_t low = 1, high = count;
    bool has_low = false;
    for (size_t k = 0; k <= count; ++k) {
        const auto x = static_cast<double>(k);
        const double chance =
            std::exp(std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) +
                     x * std::log(p) + (n - x) * std::log1p(-p));
        below += chance;
        if (!has_low && below > kTail) {
            low = std::max<size_t>(k, 1);
            has_low = true;
        }
        if (below >= 1 - kTail) {
            high = std::min(k + 1, count);
            break;
        }
    }
    return {low, high};
}

Ratio part_of(size_t kept, size_t count) {
    if (count == 0)
        return {};
    constexpr double kZ = 1.959964; // of 95 %
    const auto n = static_cast<double>(count);
    const double part = static_cast<double>(kept) / n;
    const double scale = 1 + kZ * kZ / n;
    const double middle = (part + kZ * kZ / (2 * n)) / scale;
    const double half = kZ * std::sqrt(part * (1 - part) / n + kZ * kZ / (4 * n * n)) / scale;
    return {part, std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

Ratio mean_ratio(const std::vector<double>& these, const std::vector<double>& those,
                 size_t resamples, uint64_t seed) {
    constexpr size_t kStretchMax = 5;
    const auto mean = [](const std::vector<double>& values) {
        double sum = 0;
        for (const double value : values)
            sum += value;
        return values.empty() ? 0 : sum / static_cast<double>(values.size());
    };
    if (these.empty() || resamples == 0)
        return {};
    const double to = those.empty() ? 1 : mean(those);
    Ratio ratio{ratio_or_zero(mean(these), to), 0, 0};
    Dice dice(seed);
    const auto drawn_mean = [&](const std::vector<double>& values) {
        const size_t stretch = std::clamp<size_t>(values.size() / 4, 1, kStretchMax);
        std::vector<double> drawn;
        while (drawn.size() < values.size()) {
            const size_t from = dice.below(values.size()); // a circle: each is drawn as often
            for (size_t n = 0; n < stretch && drawn.size() < values.size(); ++n)
                drawn.push_back(values[(from + n) % values.size()]);
        }
        return mean(drawn);
    };
    std::vector<double> drawn;
    for (size_t round = 0; round < resamples; ++round) {
        const double here = drawn_mean(these);
        drawn.push_back(ratio_or_zero(here, those.empty() ? 1 : drawn_mean(those)));
    }
    ratio.low = percentile(drawn, 100 * kTail);
    ratio.high = percentile(drawn, 100 * (1 - kTail));
    return ratio;
}

} // namespace berth::cli::bench
