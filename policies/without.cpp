// SPDX-License-Identifier: Apache-2.0
// Takes one document out of a text. A line that begins with "---" or "..." always ends a document,
// whatever it is in the middle of (YAML 1.2, 9.1.2), so the text falls into documents by its lines.
#include "policies/yaml.h"

#include <algorithm>

namespace berth::policies {

namespace {

bool begins_with(std::string_view line, std::string_view marker) {
    return line.starts_with(marker) &&
           (line.size() == marker.size() || line[3] == ' ' || line[3] == '\t' || line[3] == '\r');
}

// Comments, directives and "..." belong to the document that follows.
bool is_content(std::string_view line) {
    const size_t first = line.find_first_not_of(" \t\r");
    return first != std::string_view::npos && line[first] != '#' && line[first] != '%' &&
           !begins_with(line, "...");
}

// As many lines, with nothing in them.
std::string emptied(std::string_view text) {
    return std::string(static_cast<size_t>(std::ranges::count(text, '\n')), '\n');
}

} // namespace

std::string without_instance(std::string_view text, const std::string& name) {
    std::string out;
    size_t begin = 0; // of the document
    const auto take = [&](size_t end) {
        const std::string_view document = text.substr(begin, end - begin);
        const Result<Documents> read = parse_fragment(document, "");
        const bool is_it = read && read->find_instance(name) != nullptr;
        out += is_it ? emptied(document) : std::string(document);
        begin = end;
    };
    bool has_content = false;
    for (size_t line = 0; line < text.size();) {
        const size_t end = std::min(text.find('\n', line), text.size());
        const std::string_view words = text.substr(line, end - line);
        if (has_content && (begins_with(words, "---") || begins_with(words, "..."))) {
            take(line);
            has_content = false;
        }
        has_content = has_content || is_content(words);
        line = end + 1;
    }
    take(text.size());
    return out;
}

} // namespace berth::policies
