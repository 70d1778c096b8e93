// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/normalizer.h"

#include "engine_shim/reference/text/component.h"
#include "engine_shim/reference/text/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

namespace berth::text {
namespace {

constexpr std::string_view kRole = "normalizer";
constexpr std::string_view kKnown = "NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Sequence";

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

Result<std::string> unicode_form(std::string text, int options) {
    if (is_ascii(text))
        return text;
    utf8proc_uint8_t* mapped = nullptr;
    utf8proc_ssize_t bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                          static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                          static_cast<utf8proc_option_t>(options));
    if (bytes < 0)
        return fail(ErrorCode::kInvalidArgument, fmt::format("normalising {} bytes of text: {}",
                                                             text.size(), utf8proc_errmsg(bytes)));
    std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
    return std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(bytes));
}

// Each code point by itself, without regard to its place in a word.
std::string lowercase(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        Utf8Step step = next_utf8(text);
        text.remove_prefix(step.bytes);
        // The one letter whose lower case is two code points.
        if (step.code_point == 0x130)
            out += "i\xCC\x87";
        else
            append_utf8(out, static_cast<char32_t>(
                                 utf8proc_tolower(static_cast<utf8proc_int32_t>(step.code_point))));
    }
    return out;
}

Result<std::string> replace(const Regex& pattern, std::string_view content, std::string_view text) {
    BERTH_ASSIGN(std::vector<Span> found, pattern.find_all(text));
    std::string out;
    size_t copied = 0;
    for (const Span& span : found) {
        out += text.substr(copied, span.begin - copied);
        out += content;
        copied = span.end;
    }
    out += text.substr(copied);
    return out;
}

} // namespace

Result<Normalizer> Normalizer::parse(const json::value& from) {
    Normalizer normalizer;
    if (!from.is_null())
        BERTH_TRY(normalizer.add(from));
    return normalizer;
}

Status Normalizer::add(const json::value& from) {
    static const std::map<std::string, int> kForms = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    BERTH_ASSIGN(std::string type, component_type(from, kRole));
    json::Reader reader(from, "normalizer '" + type + "'");
    reader.allow_unknown();
    if (auto form = kForms.find(type); form != kForms.end()) {
        steps_.emplace_back([options = form->second](std::string text) {
            return unicode_form(std::move(text), options);
        });
    } else if (type == "Lowercase") {
        steps_.emplace_back([](const std::string& text) { return lowercase(text); });
    } else if (type == "Prepend") {
        std::string prefix = reader.string("prepend");
        steps_.emplace_back([prefix](std::string text) -> Result<std::string> {
            return text.empty() ? text : prefix + text;
        });
    } else if (type == "Replace") {
        const json::value* pattern = reader.any("pattern");
        std::string content = reader.string("content");
        BERTH_TRY(reader.finish());
        BERTH_ASSIGN(Regex compiled,
                     component_pattern(pattern == nullptr ? json::value() : *pattern, kRole));
        auto shared = std::make_shared<const Regex>(std::move(compiled));
        steps_.emplace_back(
            [shared, content](const std::string& text) { return replace(*shared, content, text); });
    } else if (type == "Sequence") {
        BERTH_ASSIGN(const json::array* list, component_list(from, "normalizers", kRole));
        for (const json::value& step : *list)
            BERTH_TRY(add(step));
    } else {
        return unknown_component(kRole, type, kKnown);
    }
    return reader.finish();
}

Result<std::string> Normalizer::apply(std::string text) const {
    for (const Step& step : steps_) {
        BERTH_ASSIGN(text, step(std::move(text)));
    }
    return text;
}

} // namespace berth::text
