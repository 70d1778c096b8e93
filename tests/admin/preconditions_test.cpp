// SPDX-License-Identifier: Apache-2.0
// Goal: a change of documents is made against the state that was meant, once. Method: requests as
// they come from a server.
#include "scheduler/admin/bodies.h"
#include "scheduler/admin/preconditions.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

http::Request with(const std::string& header, const std::string& text) {
    http::Request request;
    request.headers.set(header, text);
    return request;
}

std::string refusal(const http::Request& request, const std::string& tag) {
    const Status meant = preconditions(request, "instance chat", tag);
    return meant ? "" : meant.error().reason;
}

TEST(Preconditions, IfMatchHoldsForOneOfItsTagsAndForAnythingThatIsThere) {
    EXPECT_EQ(refusal(http::Request(), "\"a\""), "");
    EXPECT_EQ(refusal(http::Request(), ""), "");
    EXPECT_EQ(refusal(with("If-Match", "\"a\""), "\"a\""), "");
    EXPECT_EQ(refusal(with("if-match", " \"b\" ,\"a\""), "\"a\""), "");
    EXPECT_EQ(refusal(with("If-Match", "*"), "\"a\""), "");
    EXPECT_EQ(refusal(with("If-Match", "*"), ""), "ETagMismatch") << "nothing is there";
    EXPECT_EQ(refusal(with("If-Match", "\"b\""), "\"a\""), "ETagMismatch");
    EXPECT_EQ(refusal(with("If-Match", "a"), "\"a\""), "ETagMismatch") << "a tag has its quotes";
    EXPECT_EQ(refusal(with("If-Match", ""), "\"a\""), "ETagMismatch");
    std::string many;
    for (int i = 0; i < 100; ++i)
        many += "\"x\",";
    EXPECT_EQ(refusal(with("If-Match", many + "\"a\""), "\"a\""), "ETagMismatch") << "bounded";
}

TEST(Preconditions, IfNoneMatchOfAnythingMeansOnlyIfNothingIsThere) {
    EXPECT_EQ(refusal(with("If-None-Match", "*"), ""), "");
    EXPECT_EQ(refusal(with("If-None-Match", "*"), "\"a\""), "AlreadyExists");
    EXPECT_EQ(refusal(with("If-None-Match", "\"b\""), "\"a\""), "");
}

TEST(Preconditions, ARefusalIs412AndSaysWhatIsThereNow) {
    const Status meant = preconditions(with("If-Match", "\"old\""), "instance chat", "\"now\"");
    ASSERT_FALSE(meant);
    const http::Response reply = change_refused(meant.error());
    EXPECT_EQ(reply.status, 412);
    EXPECT_NE(reply.body.find("instance chat is no longer"), std::string::npos) << reply.body;
    EXPECT_NE(reply.body.find("now it is"), std::string::npos) << reply.body;
    const Error other{ErrorCode::kNotFound, "no", "InstanceNotFound", 0};
    EXPECT_EQ(change_refused(other).status, 404);
}

TEST(DoneRequests, AnIdIsOfItsMethodAndPathAndTheOldestAreForgotten) {
    DoneRequests done;
    http::Request put;
    put.method = "PUT";
    put.path = "/v1/instances/chat";
    http::Request other = put;
    other.path = "/v1/instances/nightly";
    done.keep(put, "one");
    EXPECT_TRUE(done.knows(put, "one"));
    EXPECT_FALSE(done.knows(other, "one"));
    EXPECT_FALSE(done.knows(put, "two"));
    done.keep(put, "");
    EXPECT_FALSE(done.knows(put, "")) << "no id is no repetition";
    for (size_t i = 1; i < DoneRequests::kMax; ++i)
        done.keep(put, std::to_string(i));
    EXPECT_TRUE(done.knows(put, "one"));
    done.keep(put, "one"); // again: still one
    EXPECT_TRUE(done.knows(put, "one"));
    done.keep(put, "last");
    EXPECT_FALSE(done.knows(put, "one"));
    EXPECT_TRUE(done.knows(put, "last"));
}

TEST(DoneRequests, AnIdThatIsTooLongIsRefused) {
    http::Request request;
    request.query["requestId"] = std::string(DoneRequests::kIdBytesMax, 'x');
    EXPECT_TRUE(request_id_of(request));
    request.query["requestId"] += "x";
    EXPECT_FALSE(request_id_of(request));
}

TEST(Bodies, ALoadKnowsItsTypesAndMayBeARehearsal) {
    const auto load = bodies::read_load(R"({"path": "/m", "dtype": "float16", "dryRun": true})");
    ASSERT_TRUE(load) << load.error().message;
    EXPECT_TRUE(load->dry_run);
    const auto wrong = bodies::read_load(R"({"path": "/m", "dtype": "float8"})");
    ASSERT_FALSE(wrong);
    EXPECT_NE(wrong.error().message.find("expected auto, float32, bfloat16 or float16"),
              std::string::npos)
        << wrong.error().message;
}

} // namespace
} // namespace berth
