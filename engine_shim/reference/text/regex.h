// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace berth::text {

// Bytes [begin, end) of a text.
struct Span {
    size_t begin = 0;
    size_t end = 0;
    bool operator==(const Span&) const = default;
};

// One compiled pattern as tokenizer.json files have them: written for Oniguruma's Ruby syntax, run
// by PCRE2 (UTF, UCP, JIT). Where the two read a pattern differently it is translated, or refused
// when it cannot be. Thread-safe after construction; matching allocates.
class Regex {
  public:
    static Result<Regex> compile(std::string_view pattern);
    // A pattern that matches exactly this text.
    static Result<Regex> literal(std::string_view text);

    Regex(Regex&&) noexcept;
    Regex& operator=(Regex&&) noexcept;
    ~Regex();

    // All matches from left to right that do not overlap, in text that is valid UTF-8. An empty
    // match directly behind another match is left out.
    Result<std::vector<Span>> find_all(std::string_view text) const;

  private:
    struct Code;
    explicit Regex(std::unique_ptr<Code> code);
    std::unique_ptr<Code> code_;
};

// The pattern in PCRE2's words; an error names the construct that has no equal there.
Result<std::string> translate_pattern(std::string_view pattern);

} // namespace berth::text
