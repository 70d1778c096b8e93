// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/regex.h"

#include "engine_shim/reference/text/utf8.h"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <optional>

namespace berth::text {
namespace {

std::string message_of(int error) {
    std::array<PCRE2_UCHAR, 256> buffer{};
    pcre2_get_error_message(error, buffer.data(), buffer.size());
    return reinterpret_cast<const char*>(buffer.data());
}

struct MatchDataDeleter {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, MatchDataDeleter>;

// The first match at or behind `from`.
Result<std::optional<Span>> match_from(const pcre2_code* code, pcre2_match_data* data,
                                       std::string_view text, size_t from) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int found = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data, nullptr);
    // Compiled code has a small stack of its own; the interpreter takes what it needs.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            data, nullptr);
    if (found == PCRE2_ERROR_NOMATCH)
        return std::nullopt;
    if (found < 0)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("splitting {} bytes of text into words failed: {}", text.size(),
                                message_of(found)));
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
    return Span{offsets[0], offsets[1]};
}

} // namespace

struct Regex::Code {
    explicit Code(pcre2_code* compiled) : code(compiled) {}
    Code(const Code&) = delete;
    Code& operator=(const Code&) = delete;
    ~Code() { pcre2_code_free(code); }
    pcre2_code* code;
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
    BERTH_ASSIGN(std::string translated, translate_pattern(pattern));
    int error = 0;
    PCRE2_SIZE at = 0;
    // In Ruby's syntax ^ and $ always are a line's begin and end.
    constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                     translated.size(), kOptions, &error, &at, nullptr);
    if (code == nullptr)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the pattern '{}' is not valid: {} (at byte {} of '{}')", pattern,
                                message_of(error), at, translated));
    auto owner = std::make_unique<Code>(code);
    // Without JIT (some hardened kernels forbid it) PCRE2 interprets: slower, with the same
    // matches.
    static_cast<void>(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE));
    return Regex(std::move(owner));
}

Result<Regex> Regex::literal(std::string_view text) {
    std::string pattern;
    for (char c : text) {
        if (std::string_view(R"(\^$.[]|()?*+{}-#&~ )").find(c) != std::string_view::npos)
            pattern += '\\';
        pattern += c;
    }
    return compile(pattern);
}

Result<std::vector<Span>> Regex::find_all(std::string_view text) const {
    std::vector<Span> found;
    MatchData data(pcre2_match_data_create_from_pattern(code_->code, nullptr));
    size_t from = 0;
    while (from <= text.size()) {
        BERTH_ASSIGN(std::optional<Span> match, match_from(code_->code, data.get(), text, from));
        if (!match)
            break;
        bool is_empty = match->begin == match->end;
        if (is_empty && !found.empty() && found.back().end == match->end) {
            from = match->end < text.size() ? match->end + utf8_length(text[match->end])
                                            : text.size() + 1;
            continue;
        }
        found.push_back(*match);
        from = match->end;
    }
    return found;
}

} // namespace berth::text
