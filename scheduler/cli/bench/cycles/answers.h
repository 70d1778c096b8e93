// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "scheduler/cli/bench/cycles/options.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// What the engines are asked, and whether what they answer is what they answer undisturbed.
namespace berth::cli::bench {

// The prompts of batch; online asks the same. Of different lengths, some longer than a chunk.
std::vector<std::string> make_prompts(const CyclesOptions& options);
// A request's body for /v1/completions: greedy, exactly `tokens` tokens.
json::object ask_for(const std::string& prompt, uint32_t tokens);
// The text of a reply of /v1/completions.
Result<std::string> text_of(const json::value& reply);

// Lines in OpenAI's batch format that ask the prompts in turn: line n has the id "l<n>".
Status write_lines(const std::string& file, const std::vector<std::string>& prompts,
                   uint32_t tokens, size_t lines);

// What a batch engine has written, compared with what was answered undisturbed.
struct LinesCheck {
    uint64_t answered = 0;
    uint64_t twice = 0;      // answers to a line that had one
    uint64_t failed = 0;     // with an error instead
    uint64_t different = 0;  // from the undisturbed answer
    uint64_t lost = 0;       // up to `whole`: without an answer
    uint64_t highest = 0;    // line that has an answer
    std::string first_wrong; // in words
};
// `whole`: all lines below it must be there. Corrupt where the file is not what an engine writes; a
// last line without its end is left out.
Result<LinesCheck> check_lines(const std::string& file, const std::vector<std::string>& expected,
                               uint64_t whole);

} // namespace berth::cli::bench
