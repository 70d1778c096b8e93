// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "engine_shim/reference/text/regex.h"

#include <string>
#include <string_view>
#include <vector>

// Splitting text at delimiters, as tokenizer.json files describe it.
namespace berth::text {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// "Isolated" and so on, in either spelling that files use; an error lists them.
Result<SplitBehavior> split_behavior(std::string_view name);

// Part of a text: a delimiter, or what lies between two.
struct Part {
    Span span;
    bool is_delimiter = false;
};

// The whole text as parts, from the delimiters found in it.
std::vector<Part> parts_of(size_t text_bytes, const std::vector<Span>& delimiters);
// Each number character (Unicode's N) as a delimiter of its own.
std::vector<Span> find_digits(std::string_view text);
// Appends the pieces that are left by the behaviour; empty ones are dropped.
void append_pieces(std::string_view text, const std::vector<Part>& parts, SplitBehavior behavior,
                   std::vector<std::string>& pieces);

} // namespace berth::text
