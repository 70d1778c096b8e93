// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace berth::cli::bench {

// Of each request what was measured of it: one value (time to the first token), several (gaps
// between its tokens), or none.
using Samples = std::vector<std::vector<double>>;

std::vector<double> flat(const Samples& samples);

// A ratio and the interval in which it lies with 95 % confidence.
struct Ratio {
    double value = 0;
    double low = 0, high = 0;
};

// Of the percentile of `these` to that of `those`, at each of `percents`. A paired bootstrap: each
// resample draws requests by their numbers, the same ones on both sides (B. Efron, R. Tibshirani,
// "An introduction to the bootstrap", 1993, percentile intervals). Requests without values on
// either side are left out; without any left, all is 0. Seeded: the same input, the same output.
std::vector<Ratio> quantile_ratios(const Samples& these, const Samples& those,
                                   const std::vector<double>& percents, size_t resamples,
                                   uint64_t seed);

// What the percentile of `count` samples can resolve: the ranks, counted from the smallest (1),
// between which the true value lies with 95 % confidence, whatever the distribution.
std::pair<size_t, size_t> quantile_ranks(size_t count, double percent);

// Of a part, `kept` of `count`: E. B. Wilson's score interval, 95 %, which also holds for parts
// near 0 and 1 ("Probable inference, the law of succession, and statistical inference", 1927).
Ratio part_of(size_t kept, size_t count);

// The mean of values that lie one behind the other in time, as the seconds of a phase do, and the
// interval of its quotient with that of others (empty: with 1): both sides are drawn anew in
// stretches of a few neighbours, which depend on each other (blocks: H. R. Kunsch, 1989; on a
// circle: D. N. Politis, J. P. Romano, 1992).
Ratio mean_ratio(const std::vector<double>& these, const std::vector<double>& those,
                 size_t resamples, uint64_t seed);

} // namespace berth::cli::bench
