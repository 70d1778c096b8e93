// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/colocate/pace.h"

#include <algorithm>
#include <cmath>

namespace berth::cli::bench {

namespace {

constexpr int kHalvings = 40;

// Work within [from, to) that counts: what lies before the window's end.
double within(double from, double to, double end) {
    return std::max(0.0, std::min(to, end) - std::min(from, end));
}

// The factor at which `share_at` crosses `wanted`, between `low` and `high`, by halving on a
// logarithmic scale; `rises` says in which direction the share goes.
template <typename ShareAt>
double crossing(double low, double high, double wanted, bool rises, const ShareAt& share_at) {
    for (int n = 0; n < kHalvings; ++n) {
        const double middle = std::sqrt(low * high);
        const bool is_above = share_at(middle) > wanted;
        (is_above == rises ? high : low) = middle;
    }
    return std::sqrt(low * high);
}

} // namespace

double busy_share(const Scaled& load, const EnginePace& pace) {
    double now = 0, busy = 0;
    size_t next = 0;
    std::vector<uint32_t> left; // tokens that each begun sequence still waits for
    while (next < load.arrivals.size() || !left.empty()) {
        if (left.empty() && load.arrivals[next].due_s > now)
            now = load.arrivals[next].due_s;
        if (now >= load.window_s)
            break;
        double took = 0;
        if (next < load.arrivals.size() && load.arrivals[next].due_s <= now &&
            left.size() < pace.rows_max) {
            const Arrival& one = load.arrivals[next++];
            took = pace.prompt_s + pace.prompt_token_s * one.prompt_tokens;
            if (one.tokens > 1)
                left.push_back(one.tokens - 1);
        } else {
            took = pace.step_s + pace.row_s * static_cast<double>(left.size() - 1);
            for (uint32_t& tokens : left)
                --tokens;
            std::erase(left, 0U);
        }
        busy += within(now, now + took, load.window_s);
        now += took;
    }
    return load.window_s > 0 ? busy / load.window_s : 0;
}

Scaled fit_busy(const Arrivals& unscaled, const EnginePace& pace, double wanted, Scale scale,
                uint32_t context_tokens_max) {
    auto share_with = [&](double Scale::* which) {
        return [&, which](double value) {
            Scale tried = scale;
            tried.*which = value;
            return busy_share(scaled(unscaled, tried, context_tokens_max), pace);
        };
    };
    if (scale.tokens > 0)
        scale.window_s = crossing(0.01, 1e6, wanted, false, share_with(&Scale::window_s));
    else
        scale.tokens = crossing(1e-4, 100, wanted, true, share_with(&Scale::tokens));
    Scaled load = scaled(unscaled, scale, context_tokens_max);
    load.predicted_busy = busy_share(load, pace);
    return load;
}

} // namespace berth::cli::bench
