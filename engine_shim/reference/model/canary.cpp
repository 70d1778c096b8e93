// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/canary.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace berth::engine {

namespace {
constexpr std::string_view kNotFinite = "not finite at logit ";
}

std::string canary_digest(std::span<const float> logits) {
    const auto bad = std::find_if_not(logits.begin(), logits.end(),
                                      [](float logit) { return std::isfinite(logit); });
    if (bad != logits.end())
        return fmt::format("{}{}", kNotFinite, bad - logits.begin());
    return sha256_hex({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
}

bool is_finite(const std::string& canary_digest) {
    return !canary_digest.starts_with(kNotFinite);
}

} // namespace berth::engine
