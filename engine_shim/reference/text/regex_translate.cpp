// SPDX-License-Identifier: Apache-2.0
// Oniguruma (Ruby syntax) and PCRE2 agree on nearly all that tokenizers use. They differ in these:
//   \s      PCRE2 counts U+180E as a space, Unicode (and Oniguruma) does not: written out as a set
//   \h \H   a hexadecimal digit there, horizontal space here: written out
//   \v      the one character U+000B there, all vertical space here: written out
//   [a[b]]  a union, [a&&b] an intersection; PCRE2 reads both as plain characters: refused
//   {n,m}+  a repeated repeat there, possessive here: refused; {,m}: written as {0,m}
#include "engine_shim/reference/text/regex.h"

#include <fmt/format.h>

namespace berth::text {
namespace {

constexpr std::string_view kSpaces = R"(\x{9}-\x{d}\x{85}\p{Z})";
constexpr std::string_view kHexDigits = "0-9a-fA-F";
constexpr std::string_view kSameEscapes = "dDwWpPnrtfexbBAzZG";

class Translator {
  public:
    explicit Translator(std::string_view pattern) : pattern_(pattern) {}

    Result<std::string> run() {
        while (at_ < pattern_.size()) {
            char c = pattern_[at_];
            if (c == '\\') {
                BERTH_TRY(escape());
            } else if (in_class_) {
                BERTH_TRY(within_class(c));
            } else {
                BERTH_TRY(outside_class(c));
            }
        }
        if (in_class_)
            return refuse("has a '[' without its ']'");
        return std::move(out_);
    }

  private:
    tl::unexpected<Error> refuse(std::string_view why) const {
        return fail(ErrorCode::kUnsupported, fmt::format("the pattern '{}' {}", pattern_, why));
    }

    bool next_is(char c) const { return at_ + 1 < pattern_.size() && pattern_[at_ + 1] == c; }

    void set(std::string_view members, bool is_negated) {
        if (in_class_)
            out_ += members;
        else
            out_ += fmt::format("[{}{}]", is_negated ? "^" : "", members);
    }

    Status escape() {
        if (at_ + 1 == pattern_.size())
            return refuse("ends in a lone backslash");
        char c = pattern_[at_ + 1];
        at_ += 2;
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (in_class_ && (c == 'S' || c == 'H'))
            return refuse(fmt::format("has \\{} within a class, which is not supported", c));
        if (c == 's' || c == 'S')
            set(kSpaces, c == 'S');
        else if (c == 'h' || c == 'H')
            set(kHexDigits, c == 'H');
        else if (c == 'v')
            out_ += R"(\x{b})";
        else if (!is_letter || kSameEscapes.find(c) != std::string_view::npos)
            out_ += {'\\', c};
        else
            return refuse(fmt::format("has the escape \\{}, which is not supported", c));
        bool takes_braces = c == 'p' || c == 'P' || c == 'x';
        if (takes_braces && at_ < pattern_.size() && pattern_[at_] == '{') {
            size_t end = pattern_.find('}', at_);
            if (end == std::string_view::npos)
                return refuse("has a '{' without its '}'");
            out_ += pattern_.substr(at_, end + 1 - at_);
            at_ = end + 1;
        }
        return {};
    }

    Status within_class(char c) {
        if (c == '[') {
            if (!next_is(':'))
                return refuse("has a class within a class, which is not supported");
            size_t end = pattern_.find(":]", at_ + 2);
            if (end == std::string_view::npos)
                return refuse("has a '[:' without its ':]'");
            out_ += pattern_.substr(at_, end + 2 - at_);
            at_ = end + 2;
            return {};
        }
        if (c == '&' && next_is('&'))
            return refuse("has an intersection of classes, which is not supported");
        if (c == ']')
            in_class_ = false;
        out_ += c;
        ++at_;
        return {};
    }

    Status outside_class(char c) {
        if (c == '[') {
            in_class_ = true;
            out_ += c;
            ++at_;
            if (at_ < pattern_.size() && pattern_[at_] == '^') {
                out_ += '^';
                ++at_;
            }
            // A ']' that comes first is a member.
            if (at_ < pattern_.size() && pattern_[at_] == ']') {
                out_ += R"(\])";
                ++at_;
            }
            return {};
        }
        if (c == '}' && next_is('+'))
            return refuse("has '}+', which is read differently by different engines");
        out_ += c;
        ++at_;
        if (c == '{' && at_ < pattern_.size() && pattern_[at_] == ',')
            out_ += '0';
        return {};
    }

    std::string_view pattern_;
    std::string out_;
    size_t at_ = 0;
    bool in_class_ = false;
};

} // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
    return Translator(pattern).run();
}

} // namespace berth::text
