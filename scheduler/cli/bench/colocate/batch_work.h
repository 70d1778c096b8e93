// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>

namespace berth::cli::bench {

// What the batch engine is given and what came back of it.

// A file in OpenAI's batch format with `lines` requests of kBatchPrompts different prompts, over
// and over: equal ones must be answered equally. Lengths differ, so that sequences do not end
// together.
inline constexpr size_t kBatchPrompts = 500;
Status write_batch(const std::string& file, size_t lines, uint64_t seed);

struct BatchAnswers {
    uint64_t lines = 0;     // answers on record
    uint64_t twice = 0;     // answers to what had one
    uint64_t failed = 0;    // with an error instead
    uint64_t different = 0; // from the first answer to the same prompt (of a generated file)
};
// Reads the output file that the engine has written; a last line that is not whole is left out.
Result<BatchAnswers> check_batch(const std::string& file);

} // namespace berth::cli::bench
