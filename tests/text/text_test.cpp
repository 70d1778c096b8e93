// SPDX-License-Identifier: Apache-2.0
// The text library by itself: UTF-8, patterns, splitting, merging, streaming. Equality with the
// `tokenizers` package is shown by test_tokenizer.py.
#include "engine_shim/reference/text/byte_alphabet.h"
#include "engine_shim/reference/text/chat_template.h"
#include "engine_shim/reference/text/regex.h"
#include "engine_shim/reference/text/split.h"
#include "engine_shim/reference/text/tokenizer.h"
#include "engine_shim/reference/text/utf8.h"

#include <gtest/gtest.h>

namespace berth::text {
namespace {

TEST(Utf8, EachMaximalBrokenPartBecomesOneReplacement) {
    const std::string r(kReplacement);
    EXPECT_EQ(to_valid_utf8("a\xFF"
                            "b"),
              "a" + r + "b");
    EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), r);
    EXPECT_EQ(to_valid_utf8("\xE2\x82"
                            "x"),
              r + "x");
    EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), r + r + r);
    EXPECT_EQ(to_valid_utf8("\xC0\xAF"), r + r);
    EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), r + r + r + r);
    EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
    EXPECT_EQ(to_valid_utf8(std::string_view("\0", 1)), std::string("\0", 1));
}

TEST(Utf8, AStreamGivesWholeCharactersAndTheSameTextAtEverySplit) {
    const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xE2\x82z\xF0\x9F";
    for (size_t step = 1; step <= text.size(); ++step) {
        Utf8Stream stream;
        std::string out;
        for (size_t at = 0; at < text.size(); at += step) {
            std::string piece = stream.push(std::string_view(text).substr(at, step));
            EXPECT_TRUE(is_valid_utf8(piece));
            out += piece;
        }
        out += stream.finish();
        EXPECT_EQ(out, to_valid_utf8(text)) << step;
    }
}

TEST(ByteAlphabet, EveryByteComesBack) {
    std::string all;
    for (int byte = 0; byte < 256; ++byte)
        all += static_cast<char>(byte);
    EXPECT_EQ(from_byte_alphabet(to_byte_alphabet(all)), all);
    EXPECT_EQ(to_byte_alphabet(" \n"), "\xC4\xA0\xC4\x8A");
    EXPECT_EQ(from_byte_alphabet("a b"), std::nullopt);
}

std::vector<Span> matches(std::string_view pattern, std::string_view text) {
    Result<Regex> regex = Regex::compile(pattern);
    EXPECT_TRUE(regex.has_value()) << (regex ? "" : regex.error().message);
    Result<std::vector<Span>> found = regex->find_all(text);
    EXPECT_TRUE(found.has_value());
    return *found;
}

TEST(Regex, SpacesAreUnicodesAndNotTheMongolianVowelSeparator) {
    EXPECT_EQ(matches(R"(\s)", "a\xC2\xA0\xE3\x80\x80z").size(), 2U);
    EXPECT_EQ(matches(R"(\s)", "\xE1\xA0\x8E").size(), 0U);
    EXPECT_EQ(matches(R"([^\s])", "\xE1\xA0\x8E").size(), 1U);
    EXPECT_EQ(matches(R"(\S)", "\xE1\xA0\x8E x").size(), 2U);
}

TEST(Regex, EmptyMatchesEndAndDoNotRepeat) {
    EXPECT_EQ(matches("x*", "axb"), (std::vector<Span>{{0, 0}, {1, 2}, {3, 3}}));
    EXPECT_EQ(matches("", "\xC3\xA9"), (std::vector<Span>{{0, 0}, {2, 2}}));
}

TEST(Regex, WhatTheEnginesReadDifferentlyIsRefused) {
    for (const char* pattern : {"[a&&b]", "[a[b]]", "a{1,2}+", R"(\u0041)", R"([\S])", "[a", "a\\",
                                R"(\p{L)", "(", R"(\K)"}) {
        EXPECT_FALSE(Regex::compile(pattern).has_value()) << pattern;
    }
    EXPECT_EQ(*translate_pattern("a{,3}"), "a{0,3}");
    EXPECT_EQ(*translate_pattern(R"([\s\p{L}]+)"), R"([\x{9}-\x{d}\x{85}\p{Z}\p{L}]+)");
}

TEST(Regex, ALiteralMatchesOnlyItself) {
    for (const char* text : {".", "a+b", "[x]", "\\", "{1}", "$^", "#-& "}) {
        Result<Regex> regex = Regex::literal(text);
        ASSERT_TRUE(regex.has_value()) << text;
        Result<std::vector<Span>> found = regex->find_all(std::string("zz") + text + "zz");
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(*found, (std::vector<Span>{{2, 2 + std::string_view(text).size()}})) << text;
    }
}

TEST(Regex, ALongRunOfSpacesIsMatchedWhole) {
    std::string spaces(200'000, ' ');
    EXPECT_EQ(matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces).size(), 1U);
}

constexpr std::string_view kTiny = R"({
  "added_tokens": [{"id": 9, "content": "<s>", "special": true, "normalized": false}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]}}},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "aa": 6},
            "merges": ["b c", "a b", ["ab", "c"], "a bc", "a a"]}})";

Tokenizer tiny() {
    Result<Tokenizer> tokenizer = Tokenizer::parse(kTiny, "tiny");
    EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
    return std::move(*tokenizer);
}

using Ids = std::vector<int32_t>;

TEST(Tokenizer, MergesGoByRankThenFromTheLeft) {
    Tokenizer tokenizer = tiny();
    EXPECT_EQ(*tokenizer.encode("abc", false), (Ids{5}));
    EXPECT_EQ(*tokenizer.encode("ab", false), (Ids{3}));
    EXPECT_EQ(*tokenizer.encode("aaa", false), (Ids{6, 0}));
    EXPECT_EQ(*tokenizer.encode("aabcab", false), (Ids{0, 5, 3}));
    EXPECT_EQ(*tokenizer.encode("", false), (Ids{}));
}

TEST(Tokenizer, SpecialTokensAreAddedFoundAndSkipped) {
    Tokenizer tokenizer = tiny();
    EXPECT_EQ(*tokenizer.encode("a<s>b", true), (Ids{9, 0, 9, 1}));
    EXPECT_EQ(tokenizer.decode(Ids{9, 0, 9, 1}, true), "ab");
    EXPECT_EQ(tokenizer.decode(Ids{9, 0, 9, 1, 777, -1}, false), "<s>a<s>b");
    EXPECT_EQ(tokenizer.find("<s>"), 9);
    EXPECT_TRUE(tokenizer.is_special(9));
    EXPECT_EQ(tokenizer.size(), 10U);
}

TEST(Tokenizer, AMissingPartIsNamed) {
    for (const char* text : {"{}", "[]", "{", R"({"model": {}})", R"({"model": {"vocab": {}}})"}) {
        Result<Tokenizer> parsed = Tokenizer::parse(text, "the file");
        ASSERT_FALSE(parsed.has_value());
        EXPECT_NE(parsed.error().message.find("the file"), std::string::npos);
    }
}

TEST(Tokenizer, AnAddedTokenUnderAnotherIdIsRefused) {
    std::string text(kTiny);
    text.replace(text.find(R"("id": 9)"), 7, R"("id": 2)");
    EXPECT_FALSE(Tokenizer::parse(text, "tiny").has_value());
}

TEST(ChatTemplate, TodaysDateIsAskedForOnlyWhereTheTemplateHasNone) {
    std::string jinja =
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
        "{% set system_message = messages[0]['content']|trim %}{% endif %}"
        "{% if true %}{% set date_string = strftime_now(\"%d %b %Y\") %}{% endif %}"
        "{{ \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}{% if true %}{% endif %}"
        "{{ \"Cutting Knowledge Date: December 2023\\n\" }}"
        "{{ \"Today Date: \" + date_string + \"\\n\\n\" }}{% if true %}{% endif %}"
        "{{ system_message }}{{ \"<|eot_id|>\" }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
        "message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
    Result<ChatTemplate> chat = ChatTemplate::recognise(jinja, "<b>");
    ASSERT_TRUE(chat.has_value()) << chat.error().message;
    chat->set_today([] { return std::string("01 Jan 2030"); });
    std::string text = chat->render({{"user", "hi"}}, true);
    EXPECT_NE(text.find("Today Date: 01 Jan 2030\n\n<|eot_id|>"), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("<b><|start_header_id|>system"));
}

} // namespace
} // namespace berth::text
