// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/canary.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace berth::engine {

std::string canary_digest(std::span<const float> logits) {
    const auto bad = std::find_if_not(logits.begin(), logits.end(),
                                      [](float logit) { return std::isfinite(logit); });
    if (bad != logits.end())
        return fmt::format("not finite at logit {}", bad - logits.begin());
    return sha256_hex({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
}

} // namespace berth::engine
