// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/model/saved_kv.h"

namespace berth::engine {

namespace {

constexpr double kCopiedBytesPerMs = 40e6;
constexpr double kPinnedBytesPerMs = 1.5e6;

} // namespace

double save_ms(const SaveCase& one) {
    return static_cast<double>(one.bytes) / kCopiedBytesPerMs +
           static_cast<double>(one.fresh_bytes) / kPinnedBytesPerMs;
}

bool is_worth_saving(const SaveCase& one, double ms_left) {
    const double there = save_ms(one);
    const double back = static_cast<double>(one.bytes) / kCopiedBytesPerMs;
    return there <= ms_left && (one.prefill_tokens_per_ms <= 0 ||
                                there + back <= one.tokens / one.prefill_tokens_per_ms);
}

} // namespace berth::engine
