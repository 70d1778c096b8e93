// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/text/added_tokens.h"

#include "engine_shim/reference/text/component.h"
#include "engine_shim/reference/text/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

namespace berth::text {
namespace {

bool is_space(char32_t code_point) {
    if ((code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x85)
        return true;
    utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

// A regular expression's \w: letters, marks, decimal digits, letter numbers, connectors, joiners.
bool is_word(char32_t code_point) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return code_point == 0x200C || code_point == 0x200D;
    }
}

// Where the character before `at` begins.
size_t previous_character(std::string_view text, size_t at) {
    do
        --at;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
    return at;
}

bool stands_alone(std::string_view text, Span span) {
    if (span.begin > 0 &&
        is_word(next_utf8(text.substr(previous_character(text, span.begin))).code_point))
        return false;
    return span.end == text.size() || !is_word(next_utf8(text.substr(span.end)).code_point);
}

Span with_spaces(std::string_view text, Span span, const AddedToken& token, size_t begin_min) {
    while (token.strips_left && span.begin > begin_min) {
        size_t before = previous_character(text, span.begin);
        if (!is_space(next_utf8(text.substr(before)).code_point))
            break;
        span.begin = before;
    }
    while (token.strips_right && span.end < text.size()) {
        Utf8Step step = next_utf8(text.substr(span.end));
        if (!is_space(step.code_point))
            break;
        span.end += step.bytes;
    }
    return span;
}

Result<AddedToken> read_token(const json::value& from) {
    json::Reader reader(from, "added_tokens");
    reader.allow_unknown();
    AddedToken token;
    int64_t id = reader.integer("id");
    token.content = reader.string("content");
    token.is_special = reader.boolean("special", false);
    token.is_normalized = reader.boolean("normalized", !token.is_special);
    token.is_single_word = reader.boolean("single_word", false);
    token.strips_left = reader.boolean("lstrip", false);
    token.strips_right = reader.boolean("rstrip", false);
    if (id < 0 || id > (int64_t{1} << 24))
        reader.refuse("id", "is out of range");
    if (token.content.empty())
        reader.refuse("content", "is empty");
    BERTH_TRY(reader.finish());
    token.id = static_cast<int32_t>(id);
    return token;
}

// An added token is in the vocabulary under its own id, or its id is free there.
Status check_id(const AddedToken& token, const Bpe& bpe) {
    std::optional<int32_t> known = bpe.find(token.content);
    const std::string& there = bpe.token(token.id);
    if ((known && *known != token.id) || (!known && !there.empty()))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("added_tokens: '{}' has id {}, but the vocabulary has {}",
                                token.content, token.id,
                                known ? fmt::format("it under {}", *known)
                                      : fmt::format("'{}' there", there)));
    return {};
}

} // namespace

void AddedTokens::Trie::add(std::string_view text, int32_t id) {
    size_t node = 0;
    for (char c : text) {
        auto [found, is_new] = nodes_[node].next.try_emplace(c, nodes_.size());
        node = found->second;
        if (is_new)
            nodes_.emplace_back();
    }
    if (!nodes_[node].id)
        nodes_[node].id = id;
}

std::optional<std::pair<int32_t, size_t>> AddedTokens::Trie::longest(std::string_view text,
                                                                     size_t at) const {
    std::optional<std::pair<int32_t, size_t>> best;
    size_t node = 0;
    while (at < text.size()) {
        auto next = nodes_[node].next.find(text[at]);
        if (next == nodes_[node].next.end())
            break;
        node = next->second;
        ++at;
        if (nodes_[node].id)
            best = {*nodes_[node].id, at};
    }
    return best;
}

Result<AddedTokens> AddedTokens::parse(const json::value* from, const Bpe& bpe,
                                       const Normalizer& normalizer) {
    AddedTokens added;
    if (from == nullptr || from->is_null())
        return added;
    if (!from->is_array())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("added_tokens: expected a list, found {}", json::kind_name(*from)));
    for (const json::value& item : from->get_array()) {
        BERTH_ASSIGN(AddedToken token, read_token(item));
        BERTH_TRY(check_id(token, bpe));
        if (added.by_content_.contains(token.content) || added.tokens_.contains(token.id))
            return fail(
                ErrorCode::kInvalidArgument,
                fmt::format("added_tokens: '{}' (id {}) is there twice", token.content, token.id));
        if (token.is_normalized) {
            BERTH_ASSIGN(std::string sought, normalizer.apply(token.content));
            added.normalized_.add(sought, token.id);
        } else {
            added.plain_.add(token.content, token.id);
        }
        added.by_content_.emplace(token.content, token.id);
        added.tokens_.emplace(token.id, std::move(token));
    }
    return added;
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text,
                                                   bool is_normalized) const {
    const Trie& trie = is_normalized ? normalized_ : plain_;
    std::vector<Piece> pieces;
    size_t done = 0;
    for (size_t at = 0; !trie.empty() && at < text.size();) {
        auto found = trie.longest(text, at);
        if (!found) {
            ++at;
            continue;
        }
        Span match{at, found->second};
        at = match.end;
        const AddedToken& token = tokens_.at(found->first);
        if (token.is_single_word && !stands_alone(text, match))
            continue;
        Span span = with_spaces(text, match, token, done);
        if (done < span.begin)
            pieces.push_back({{done, span.begin}, std::nullopt});
        pieces.push_back({span, token.id});
        // The next is looked for directly behind the text of this one, also within spaces that it
        // took: the `tokenizers` package gives both tokens then.
        done = span.end;
    }
    if (done < text.size())
        pieces.push_back({{done, text.size()}, std::nullopt});
    return pieces;
}

const AddedToken* AddedTokens::find(int32_t id) const {
    auto found = tokens_.find(id);
    return found == tokens_.end() ? nullptr : &found->second;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
    auto found = by_content_.find(content);
    return found == by_content_.end() ? nullptr : &tokens_.at(found->second);
}

} // namespace berth::text
