// SPDX-License-Identifier: Apache-2.0
// JSON's errors name the place, the field, what was found and what was expected.
#include "base/json.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

std::string refusal_of(std::string_view text) {
    auto parsed = json::parse(text, "body");
    return parsed ? std::string() : parsed.error().message;
}

TEST(Json, SaysWhereTheTextBreaks) {
    EXPECT_NE(refusal_of("{\n  \"a\": 1,\n  b\n}").find("line 3, column 3"), std::string::npos)
        << refusal_of("{\n  \"a\": 1,\n  b\n}");
    for (const char* bad : {"", "{", "{} x", "[1,]", "\"\xff\"", "01", "nul"})
        EXPECT_TRUE(refusal_of(bad).starts_with("body: ")) << bad;
    EXPECT_EQ(refusal_of(" {\"a\": [1, 2]} \n"), "");
}

TEST(Json, RefusesDeepNesting) {
    EXPECT_EQ(refusal_of(std::string(60, '[') + std::string(60, ']')), "");
    EXPECT_NE(refusal_of(std::string(70, '[') + std::string(70, ']')), "");
    EXPECT_NE(refusal_of(std::string(1'000'000, '[')), "");
}

TEST(JsonReader, ReadsEachType) {
    auto value = json::parse(R"({"s":"x","i":-4,"u":18446744073709551615,"d":1.5,"b":true,"n":7,
                                 "o":{}})",
                             "body");
    ASSERT_TRUE(value);
    json::Reader reader(*value, "body");
    EXPECT_EQ(reader.string("s"), "x");
    EXPECT_EQ(reader.string("absent", "fallback"), "fallback");
    EXPECT_EQ(reader.integer("i"), -4);
    EXPECT_EQ(reader.integer("absent", 9), 9);
    EXPECT_EQ(reader.unsigned_integer("u"), UINT64_MAX);
    EXPECT_DOUBLE_EQ(reader.number("d"), 1.5);
    EXPECT_DOUBLE_EQ(reader.number("n"), 7);
    EXPECT_TRUE(reader.boolean("b", false));
    EXPECT_NE(reader.any("o"), nullptr);
    EXPECT_EQ(reader.any("absent"), nullptr);
    EXPECT_TRUE(reader.finish());
}

std::string reader_refusal(std::string_view text, const std::function<void(json::Reader&)>& read) {
    json::value value = *json::parse(text, "body");
    json::Reader reader(value, "body");
    read(reader);
    auto done = reader.finish();
    return done ? std::string() : done.error().message;
}

TEST(JsonReader, NamesTheFieldThatIsWrong) {
    EXPECT_EQ(reader_refusal(R"({"mode": 4})", [](json::Reader& r) { r.string("mode"); }),
              "body: field 'mode': expected a string, found a number");
    EXPECT_EQ(reader_refusal("{}", [](json::Reader& r) { r.integer("count"); }),
              "body: field 'count': is missing");
    EXPECT_EQ(reader_refusal(R"({"moed": "x"})", [](json::Reader& r) { r.string("mode", ""); }),
              "body: field 'moed': is not known here");
    EXPECT_EQ(reader_refusal("[]", [](json::Reader&) {}),
              "body: expected an object, found an array");
    EXPECT_NE(reader_refusal(R"({"u": -1})", [](json::Reader& r) { r.unsigned_integer("u"); }), "");
    EXPECT_NE(
        reader_refusal(R"({"i": 9223372036854775808})", [](json::Reader& r) { r.integer("i"); }),
        "");
    EXPECT_NE(reader_refusal(R"({"i": 1.5})", [](json::Reader& r) { r.integer("i"); }), "");
    EXPECT_NE(reader_refusal(R"({"b": "true"})", [](json::Reader& r) { r.boolean("b", false); }),
              "");
}

TEST(JsonReader, KeepsTheFirstFailure) {
    EXPECT_EQ(reader_refusal("{}",
                             [](json::Reader& r) {
                                 r.string("first");
                                 r.string("second");
                                 r.refuse("third", "is odd");
                             }),
              "body: field 'first': is missing");
    EXPECT_EQ(reader_refusal(R"({"x": 1})", [](json::Reader& r) { r.allow_unknown(); }), "");
}

TEST(JsonError, ComesBackAsItWas) {
    Error error{ErrorCode::kMismatch, "dtype differs", "FingerprintMismatch", 0};
    Error back = json::to_error(json::from_error(error));
    EXPECT_EQ(back.code, error.code);
    EXPECT_EQ(back.reason, error.reason);
    EXPECT_EQ(back.message, error.message);
    Error plain{ErrorCode::kIo, "disk", {}, 5};
    EXPECT_EQ(json::to_error(json::from_error(plain)).reason, "");
}

TEST(ErrorCodes, HaveNamesThatReadBackAndAStatus) {
    for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
        auto code = static_cast<ErrorCode>(i);
        EXPECT_EQ(error_code_from(to_string(code)), code);
        EXPECT_GE(http_status(code), 400);
    }
    EXPECT_EQ(error_code_from("Nonsense"), ErrorCode::kInternal);
}

} // namespace
} // namespace berth
