// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/canary.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace berth::engine {

namespace {

// So many that what kernels add up differently changes nobody's place by as much.
constexpr size_t kLikeliest = 5;

std::vector<uint64_t> likeliest(std::span<const float> logits) {
    std::vector<uint64_t> tokens(logits.size());
    std::iota(tokens.begin(), tokens.end(), uint64_t{0});
    const size_t count = std::min(kLikeliest, tokens.size());
    std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                      tokens.end(), [logits](uint64_t a, uint64_t b) {
                          return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                      });
    tokens.resize(count);
    return tokens;
}

} // namespace

Canary canary_of(std::span<const float> logits) {
    const auto bad = std::find_if_not(logits.begin(), logits.end(),
                                      [](float logit) { return std::isfinite(logit); });
    if (bad != logits.end())
        return {fmt::format("not finite at logit {}", bad - logits.begin()), {}};
    return {sha256_hex({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()}),
            likeliest(logits)};
}

} // namespace berth::engine
