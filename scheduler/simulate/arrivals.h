// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/units.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth::simulate {

// One request of an arrival trace.
struct Arrival {
    Nanoseconds at{0}; // after the first
    uint64_t input_tokens = 0;
    uint64_t output_tokens = 0;
};

// Reads a CSV with a header. Known columns, in any order and beside others: the time as arrived_at,
// timestamp or TIMESTAMP (seconds, or "2023-11-16 18:17:03.97996"), the tokens as input_tokens,
// num_prefill_tokens or ContextTokens, and output_tokens, num_decode_tokens or GeneratedTokens.
// Sorted by time. InvalidArgument with FILE:LINE, what was found and what was expected.
Result<std::vector<Arrival>> read_arrivals(std::string_view text, const std::string& file);

} // namespace berth::simulate
