// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/tokens.h"

#include "base/hash.h"
#include "base/unique_fd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr std::string_view kHashTag = "sha256:";
constexpr size_t kHashDigits = 64;
constexpr std::string_view kSpace = " \t\r";

std::vector<std::string_view> words_of(std::string_view line) {
    std::vector<std::string_view> words;
    for (size_t at = 0; (at = line.find_first_not_of(kSpace, at)) != std::string_view::npos;) {
        size_t end = std::min(line.find_first_of(kSpace, at), line.size());
        words.push_back(line.substr(at, end - at));
        at = end;
    }
    return words;
}

bool is_name(std::string_view text) {
    return !text.empty() && text.size() <= 63 && text.front() != '#' &&
           std::ranges::all_of(text, [](char c) {
               return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' ||
                      c == '-';
           });
}

bool is_hash(std::string_view text) {
    return text.size() == kHashDigits && std::ranges::all_of(text, [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

tl::unexpected<Error> refuse(const std::string& file, size_t line, std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", file, line, why),
                "InvalidTokenFile");
}

Result<Tokens::Token> token_in(const std::vector<std::string_view>& words, const std::string& file,
                               size_t line) {
    if (words.size() != 3)
        return refuse(
            file, line,
            fmt::format("expected NAME ROLE sha256:HEX, found {} words; `berth token NAME "
                        "--role ROLE` makes such a line",
                        words.size()));
    if (!is_name(words[0]))
        return refuse(file, line,
                      "the name has 1 to 63 letters, digits, '.', '_' and '-', and no others");
    auto role = policies::role_from(words[1]);
    if (!role)
        return refuse(file, line, role.error().message);
    if (!words[2].starts_with(kHashTag) || !is_hash(words[2].substr(kHashTag.size())))
        return refuse(file, line,
                      "the third word is sha256: and 64 lower-case hexadecimal digits: the hash of "
                      "the token, never the token");
    return Tokens::Token{std::string(words[0]), *role, std::string(words[2].substr(7))};
}

} // namespace

Result<Tokens> Tokens::parse(std::string_view text, const std::string& file) {
    if (text.size() > kFileBytesMax)
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("{}: {} bytes; {} at most are read", file, text.size(), kFileBytesMax),
            "InvalidTokenFile");
    Tokens out;
    size_t number = 0;
    std::vector<std::pair<size_t, std::vector<std::string_view>>> lines;
    for (size_t at = 0; at < text.size();) {
        size_t end = std::min(text.find('\n', at), text.size());
        std::vector<std::string_view> words = words_of(text.substr(at, end - at));
        at = end + 1;
        ++number;
        if (!words.empty() && !words.front().starts_with('#'))
            lines.emplace_back(number, std::move(words));
    }
    bool is_bare = lines.size() == 1 && lines.front().second.size() == 1;
    if (is_bare && lines.front().second.front().size() >= kBareTokenMin) {
        out.tokens_.push_back(
            {"file", policies::Role::kAdmin, sha256_hex(lines.front().second.front())});
        out.warning_ = fmt::format("{} holds a token as it is: whoever reads it is admin here. Put "
                                   "its hash there: NAME ROLE sha256:HEX (berth token)",
                                   file);
        return out;
    }
    for (const auto& [line, words] : lines) {
        BERTH_ASSIGN(Token token, token_in(words, file, line));
        if (std::ranges::any_of(out.tokens_,
                                [&](const Token& other) { return other.name == token.name; }))
            return refuse(file, line, fmt::format("the name '{}' is given twice", token.name));
        if (out.tokens_.size() == kTokensMax)
            return refuse(file, line, fmt::format("more than {} tokens", kTokensMax));
        out.tokens_.push_back(std::move(token));
    }
    return out;
}

Result<Tokens> Tokens::read(const std::string& file) {
    struct stat found{};
    if (::stat(file.c_str(), &found) != 0)
        return fail_errno(file);
    if ((found.st_mode & 0027U) != 0)
        return fail(ErrorCode::kPermissionDenied,
                    fmt::format("{}: its mode is {:04o}; a token file must not be read by others, "
                                "nor written by its group: chmod 0640, or 0600",
                                file, found.st_mode & 07777U),
                    "TokenFileOpen");
    if (found.st_uid != 0 && found.st_uid != ::geteuid())
        return fail(ErrorCode::kPermissionDenied,
                    fmt::format("{}: it belongs to user {}, who could let himself in: chown it to "
                                "root or to user {}",
                                file, found.st_uid, ::geteuid()),
                    "TokenFileOpen");
    BERTH_ASSIGN(std::string text, read_file(file, kFileBytesMax));
    return parse(text, file);
}

const Tokens::Token* Tokens::find(std::string_view token) const {
    const std::string hash = sha256_hex(token);
    const Token* found = nullptr;
    for (const Token& one : tokens_) {
        unsigned difference = 0;
        for (size_t i = 0; i < kHashDigits; ++i)
            difference |=
                static_cast<unsigned char>(hash[i]) ^ static_cast<unsigned char>(one.sha256[i]);
        found = difference == 0 ? &one : found;
    }
    return found;
}

Result<NewToken> make_token(const std::string& name, policies::Role role) {
    if (!is_name(name))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("'{}': a token's name has 1 to 63 letters, digits, '.', '_' and "
                                "'-', and no others",
                                name));
    NewToken made;
    made.token = "berth_" + random_hex(32);
    made.line = fmt::format("{} {} {}{}", name, policies::to_string(role), kHashTag,
                            sha256_hex(made.token));
    return made;
}

} // namespace berth
