// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth::cli::bench {

struct TraceRow {
    double at_s = 0; // since the first of those that were read
    uint32_t prompt_tokens = 0;
    uint32_t tokens = 0; // to be generated
};

// Rows of a trace in the format of the Azure LLM inference traces, a header and then one request a
// line in order of time:
//     TIMESTAMP,ContextTokens,GeneratedTokens
//     2023-11-16 18:15:46.6805900,374,44
// `count` of them from row `first` (0: the first after the header). Errors name file and line.
Result<std::vector<TraceRow>> parse_trace(std::string_view text, const std::string& file,
                                          size_t first, size_t count);
Result<std::vector<TraceRow>> read_trace(const std::string& file, size_t first, size_t count);

} // namespace berth::cli::bench
