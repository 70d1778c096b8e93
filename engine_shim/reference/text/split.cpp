// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/split.h"

#include "engine_shim/reference/text/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <map>

namespace berth::text {
namespace {

std::vector<Span> isolated(const std::vector<Part>& parts, bool keeps_delimiters) {
    std::vector<Span> spans;
    for (const Part& part : parts) {
        if (keeps_delimiters || !part.is_delimiter)
            spans.push_back(part.span);
    }
    return spans;
}

// Joins neighbours of one kind.
std::vector<Span> contiguous(const std::vector<Part>& parts) {
    std::vector<Span> spans;
    bool was_delimiter = false;
    for (const Part& part : parts) {
        if (part.is_delimiter == was_delimiter && !spans.empty())
            spans.back().end = part.span.end;
        else
            spans.push_back(part.span);
        was_delimiter = part.is_delimiter;
    }
    return spans;
}

// A delimiter joins the piece before it, unless that ends in a delimiter itself.
std::vector<Span> merged_with_previous(const std::vector<Part>& parts) {
    std::vector<Span> spans;
    bool was_delimiter = false;
    for (const Part& part : parts) {
        if (part.is_delimiter && !was_delimiter && !spans.empty())
            spans.back().end = part.span.end;
        else
            spans.push_back(part.span);
        was_delimiter = part.is_delimiter;
    }
    return spans;
}

// The same from the other end.
std::vector<Span> merged_with_next(const std::vector<Part>& parts) {
    std::vector<Span> spans;
    bool was_delimiter = false;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->is_delimiter && !was_delimiter && !spans.empty())
            spans.back().begin = part->span.begin;
        else
            spans.push_back(part->span);
        was_delimiter = part->is_delimiter;
    }
    std::reverse(spans.begin(), spans.end());
    return spans;
}

std::vector<Span> spans_of(const std::vector<Part>& parts, SplitBehavior behavior) {
    switch (behavior) {
    case SplitBehavior::kRemoved:
        return isolated(parts, false);
    case SplitBehavior::kIsolated:
        return isolated(parts, true);
    case SplitBehavior::kMergedWithPrevious:
        return merged_with_previous(parts);
    case SplitBehavior::kMergedWithNext:
        return merged_with_next(parts);
    case SplitBehavior::kContiguous:
        return contiguous(parts);
    }
    return {};
}

} // namespace

Result<SplitBehavior> split_behavior(std::string_view name) {
    static const std::map<std::string_view, SplitBehavior> kNames = {
        {"Removed", SplitBehavior::kRemoved},
        {"Isolated", SplitBehavior::kIsolated},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext},
        {"Contiguous", SplitBehavior::kContiguous},
    };
    auto found = kNames.find(name);
    if (found == kNames.end())
        return fail(ErrorCode::kUnsupported,
                    fmt::format("behavior '{}' is not supported (known: Removed, Isolated, "
                                "MergedWithPrevious, MergedWithNext, Contiguous)",
                                name));
    return found->second;
}

std::vector<Part> parts_of(size_t text_bytes, const std::vector<Span>& delimiters) {
    std::vector<Part> parts;
    parts.reserve(2 * delimiters.size() + 1);
    size_t at = 0;
    for (const Span& delimiter : delimiters) {
        if (at != delimiter.begin)
            parts.push_back({{at, delimiter.begin}, false});
        parts.push_back({delimiter, true});
        at = delimiter.end;
    }
    if (at != text_bytes)
        parts.push_back({{at, text_bytes}, false});
    return parts;
}

std::vector<Span> find_digits(std::string_view text) {
    std::vector<Span> found;
    for (size_t at = 0; at < text.size();) {
        Utf8Step step = next_utf8(text.substr(at));
        utf8proc_category_t category =
            utf8proc_category(static_cast<utf8proc_int32_t>(step.code_point));
        if (category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
            category == UTF8PROC_CATEGORY_NO)
            found.push_back({at, at + step.bytes});
        at += step.bytes;
    }
    return found;
}

void append_pieces(std::string_view text, const std::vector<Part>& parts, SplitBehavior behavior,
                   std::vector<std::string>& pieces) {
    for (const Span& span : spans_of(parts, behavior)) {
        if (span.begin != span.end)
            pieces.emplace_back(text.substr(span.begin, span.end - span.begin));
    }
}

} // namespace berth::text
