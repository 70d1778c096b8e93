// SPDX-License-Identifier: Apache-2.0
// The router's choice among templates, and what it makes of odd paths.
#include "base/http/router.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace berth::http {
namespace {

Handler nothing() {
    return [](Request) -> boost::asio::awaitable<Response> { co_return Response{}; };
}

Router sample() {
    Router router;
    router.add("GET", "/v1/instances", nothing());
    router.add("GET", "/v1/instances/{name}", nothing());
    router.add("PUT", "/v1/instances/{name}", nothing());
    router.add("POST", "/v1/instances/{name}:preempt", nothing());
    router.add("POST", "/v1/weights:load", nothing());
    router.add("GET", "/v1/instances/default", nothing());
    return router;
}

TEST(Router, FindsLiteralsParametersAndVerbs) {
    Router router = sample();
    EXPECT_EQ(router.match("GET", "/v1/instances").path_template, "/v1/instances");
    Router::Match one = router.match("PUT", "/v1/instances/nightly");
    EXPECT_EQ(one.outcome, Router::Outcome::kFound);
    EXPECT_EQ(one.params.at("name"), "nightly");
    Router::Match verb = router.match("POST", "/v1/instances/nightly:preempt");
    EXPECT_EQ(verb.outcome, Router::Outcome::kFound);
    EXPECT_EQ(verb.path_template, "/v1/instances/{name}:preempt");
    EXPECT_EQ(verb.params.at("name"), "nightly");
    EXPECT_EQ(router.match("POST", "/v1/weights:load").outcome, Router::Outcome::kFound);
}

TEST(Router, ALiteralWinsOverAParameter) {
    EXPECT_EQ(sample().match("GET", "/v1/instances/default").path_template,
              "/v1/instances/default");
}

TEST(Router, TellsTheMethodsThatAPathTakes) {
    Router router = sample();
    Router::Match match = router.match("DELETE", "/v1/instances/nightly");
    EXPECT_EQ(match.outcome, Router::Outcome::kMethodNotAllowed);
    EXPECT_EQ(match.allow, "GET, HEAD, PUT");
    EXPECT_EQ(router.match("GET", "/v1/instances/nightly:preempt").allow, "POST");
}

TEST(Router, HeadIsAnsweredByGet) {
    EXPECT_EQ(sample().match("HEAD", "/v1/instances").outcome, Router::Outcome::kFound);
    EXPECT_EQ(sample().match("HEAD", "/v1/weights:load").outcome,
              Router::Outcome::kMethodNotAllowed);
}

TEST(Router, AnEmptySegmentIsNoName) {
    Router router = sample();
    for (const char* path : {"/v1/instances/", "/v1/instances//", "/", "", "/v1",
                             "/v1/instances/a/b", "//v1/instances"})
        EXPECT_EQ(router.match("GET", path).outcome, Router::Outcome::kNotFound) << path;
    // The verb alone is a name of that form, not the verb of an empty name.
    EXPECT_EQ(router.match("GET", "/v1/instances/:preempt").params.at("name"), ":preempt");
}

TEST(Router, DecodesNamesAfterTheSplit) {
    Router::Match match = sample().match("GET", "/v1/instances/a%2Fb%20c");
    ASSERT_EQ(match.outcome, Router::Outcome::kFound);
    EXPECT_EQ(match.params.at("name"), "a/b c");
}

TEST(Router, RefusesBrokenEscapes) {
    Router router = sample();
    for (const char* path :
         {"/v1/instances/%", "/v1/instances/%4", "/v1/instances/%zz", "/v1/instances/a%00b"})
        EXPECT_EQ(router.match("GET", path).outcome, Router::Outcome::kBadPath) << path;
}

TEST(Router, RefusesTemplatesThatMakeNoSense) {
    Router router = sample();
    EXPECT_THROW(router.add("GET", "v1", nothing()), std::invalid_argument);
    EXPECT_THROW(router.add("GET", "/v1/{}", nothing()), std::invalid_argument);
    EXPECT_THROW(router.add("GET", "/v1/{name", nothing()), std::invalid_argument);
    EXPECT_THROW(router.add("GET", "/v1/{name}verb", nothing()), std::invalid_argument);
    EXPECT_THROW(router.add("GET", "/v1/instances", nothing()), std::invalid_argument);
}

TEST(Percent, EncodesWhatDecodesToTheSame) {
    std::string all;
    for (int c = 1; c < 256; ++c)
        all += static_cast<char>(c);
    auto decoded = percent_decode(percent_encode(all));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(*decoded, all);
    EXPECT_EQ(*percent_decode("a+b"), "a+b");
    EXPECT_EQ(*percent_decode("a+b", true), "a b");
}

TEST(Query, SplitsAndDecodes) {
    auto query = parse_query("since=4&follow=true&empty=&flag&&x=a%26b+c&since=5");
    ASSERT_TRUE(query) << query.error().message;
    EXPECT_EQ(query->at("since"), "5");
    EXPECT_EQ(query->at("empty"), "");
    EXPECT_EQ(query->at("flag"), "");
    EXPECT_EQ(query->at("x"), "a&b c");
    EXPECT_FALSE(parse_query("a=%g1"));
}

TEST(HeaderFields, AreFoundWhateverTheirCase) {
    Headers headers{{"Content-Type", "a"}, {"X", "1"}};
    headers.add("x", "2");
    EXPECT_EQ(*headers.find("CONTENT-TYPE"), "a");
    EXPECT_EQ(*headers.find("x"), "1");
    headers.set("X", "3");
    EXPECT_EQ(*headers.find("x"), "3");
    EXPECT_EQ(headers.fields().size(), 2U);
    EXPECT_EQ(headers.find("y"), nullptr);
}

TEST(ErrorReply, ComesBackAsTheSameError) {
    Error error{ErrorCode::kResourceExhausted, "no room on host-0", "InsufficientMemory", 0};
    Response response = error_response(error);
    EXPECT_EQ(response.status, http_status(ErrorCode::kResourceExhausted));
    Error back = error_from(response);
    EXPECT_EQ(back.code, error.code);
    EXPECT_EQ(back.reason, error.reason);
    EXPECT_EQ(back.message, error.message);
    EXPECT_EQ(error_from(text_response("<html>", 404)).code, ErrorCode::kNotFound);
}

} // namespace
} // namespace berth::http
