// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace berth::engine {

namespace {

// A uniform number in [0, 1) from a seed and a counter (the finaliser of SplitMix64, twice).
double uniform(uint64_t seed, uint64_t index) {
    const auto mix = [](uint64_t x) {
        x += 0x9e3779b97f4a7c15ULL;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
        return x ^ (x >> 31);
    };
    return static_cast<double>(mix(mix(seed) ^ index) >> 11) * 0x1.0p-53;
}

// The candidates, likeliest first; equal ones by token, so that the order never depends on chance.
std::vector<int32_t> likeliest(std::span<const float> logits, size_t count) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto better = [&](int32_t a, int32_t b) {
        const float x = logits[static_cast<size_t>(a)];
        const float y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    };
    count = std::min(count, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                      better);
    order.resize(count);
    return order;
}

double log_sum(std::span<const float> logits, double scale, float largest) {
    double sum = 0;
    for (const float logit : logits)
        sum += std::exp((static_cast<double>(logit) - largest) * scale);
    return std::log(sum);
}

// The tokens that may be drawn, with their unnormalised probabilities.
struct Candidates {
    std::vector<int32_t> tokens;
    std::vector<double> weights;
    double sum = 0;
};

// The first of `order` that reach top_p of `total`; `complete` says whether they do.
Candidates nucleus(std::span<const float> logits, const std::vector<int32_t>& order, double scale,
                   float largest, double threshold, bool& complete) {
    Candidates candidates;
    complete = false;
    for (const int32_t token : order) {
        const double weight =
            std::exp((static_cast<double>(logits[static_cast<size_t>(token)]) - largest) * scale);
        candidates.tokens.push_back(token);
        candidates.weights.push_back(weight);
        candidates.sum += weight;
        if (candidates.sum >= threshold) {
            complete = true;
            break;
        }
    }
    return candidates;
}

// top_k first, then top_p of what it leaves. Without top_k ever more of the likeliest are looked at
// until they are a nucleus: mostly the first few suffice, and a whole sort is dear.
Candidates candidates_of(std::span<const float> logits, const SamplingParams& params, double scale,
                         float largest) {
    const double top_p = static_cast<double>(params.top_p);
    bool complete = false;
    if (params.top_k > 0) {
        const std::vector<int32_t> order = likeliest(logits, static_cast<size_t>(params.top_k));
        const double all = nucleus(logits, order, scale, largest,
                                   std::numeric_limits<double>::infinity(), complete)
                               .sum;
        return nucleus(logits, order, scale, largest, top_p * all, complete);
    }
    const double total = std::exp(log_sum(logits, scale, largest));
    size_t look = params.top_p >= 1.0F ? logits.size() : std::min<size_t>(logits.size(), 64);
    for (;; look = std::min(logits.size(), look * 8)) {
        std::vector<int32_t> order;
        if (params.top_p >= 1.0F) {
            order.resize(look);
            std::iota(order.begin(), order.end(), 0);
        } else {
            order = likeliest(logits, look);
        }
        const double threshold =
            params.top_p >= 1.0F ? std::numeric_limits<double>::infinity() : top_p * total;
        Candidates found = nucleus(logits, order, scale, largest, threshold, complete);
        if (complete || look == logits.size())
            return found;
    }
}

int32_t draw(std::span<const float> logits, const SamplingParams& params, uint32_t index) {
    const double scale = 1.0 / static_cast<double>(params.temperature);
    const float largest = *std::max_element(logits.begin(), logits.end());
    const Candidates candidates = candidates_of(logits, params, scale, largest);
    double target = uniform(params.seed, index) * candidates.sum;
    for (size_t i = 0; i < candidates.tokens.size(); ++i) {
        target -= candidates.weights[i];
        if (target < 0)
            return candidates.tokens[i];
    }
    return candidates.tokens.back();
}

void tell_logprobs(std::span<const float> logits, uint32_t count, SampledToken& sampled) {
    const float largest = *std::max_element(logits.begin(), logits.end());
    const double base = static_cast<double>(largest) + log_sum(logits, 1.0, largest);
    const auto logprob = [&](int32_t token) {
        return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - base);
    };
    sampled.logprob = logprob(sampled.token);
    for (const int32_t token : likeliest(logits, count))
        sampled.top.emplace_back(token, logprob(token));
}

} // namespace

std::vector<SampledToken> sample(const at::Tensor& logits, std::span<const SampleRow> rows) {
    const c10::InferenceMode inference;
    std::vector<SampledToken> sampled(rows.size());
    const at::Tensor best = logits.argmax(-1).cpu();
    at::Tensor host; // all rows come over only when one is drawn from
    for (size_t i = 0; i < rows.size(); ++i) {
        const SamplingParams& params = rows[i].params;
        sampled[i].token = static_cast<int32_t>(best.data_ptr<int64_t>()[i]);
        if (params.temperature == 0.0F && !params.logprobs)
            continue;
        if (!host.defined())
            host = logits.cpu().contiguous();
        const auto vocab = static_cast<size_t>(host.size(1));
        const std::span<const float> row(host.data_ptr<float>() + i * vocab, vocab);
        if (params.temperature != 0.0F)
            sampled[i].token = draw(row, params, rows[i].index);
        if (params.logprobs)
            tell_logprobs(row, *params.logprobs, sampled[i]);
    }
    return sampled;
}

} // namespace berth::engine
