// SPDX-License-Identifier: Apache-2.0
// Goal: what people and scripts rely on of the commands about policies: nothing is sent of a wrong
// whole, nothing is applied over what somebody else has just changed. Method: the real program
// against an admin socket with canned answers.
#include "base/json.h"
#include "fake_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace berth::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

json::value json_of(const std::string& text) {
    auto parsed = json::parse(text, "the program's output");
    EXPECT_TRUE(parsed) << text;
    return parsed ? *parsed : json::value();
}

http::Response tagged(const std::string& body, const std::string& tag) {
    http::Response response = http::text_response(body, 200, "application/yaml");
    response.headers.set("ETag", tag);
    return response;
}

// A node whose policy has the tag "one"; PUT gives it "two".
struct PolicyNode {
    FakeNode node;
    std::string a = node.folder() + "/a.yaml", b = node.folder() + "/b.yaml";
    std::string if_match; // of the last PUT or DELETE
    int status = 200;

    PolicyNode() {
        std::ofstream(a) << "kind: Model\nmetadata: {name: m}\nspec: {path: models/m}\n";
        node.on("GET", "/v1/policy",
                [](const http::Request&) { return tagged("kind: Model\n", "\"one\""); });
        const auto change = [this](const http::Request& request) {
            const std::string* wanted = request.headers.find("If-Match");
            if_match = wanted == nullptr ? "" : *wanted;
            if (status != 200)
                return http::error_response(Error{ErrorCode::kFailedPrecondition,
                                                  "somebody has changed it", "ETagMismatch", 0},
                                            status);
            return tagged("kind: Model\n", "\"two\"");
        };
        node.on("PUT", "/v1/policy", change);
        node.on("DELETE", "/v1/policy", change);
    }
    size_t changes() const {
        size_t count = 0;
        for (const auto& one : node.seen())
            count += one.method != "GET" ? 1 : 0;
        return count;
    }
};

TEST(CliPolicy, ApplySendsAllFilesInOnePieceAndAnErrorNamesFileAndLineBeforeItSends) {
    PolicyNode on;
    on.node.start();
    std::ofstream(on.b) << "kind: Model\nmetadata: {name: n}\nspec: {pth: /models/n}\n";
    Ran wrong = run_berth(on.node.socket(), "apply -f " + on.a + " " + on.b);
    EXPECT_EQ(wrong.exit_code, 1);
    EXPECT_THAT(wrong.err, HasSubstr("b.yaml:3:8: field 'spec.pth': unknown field; did you mean"));
    EXPECT_THAT(on.node.seen(), IsEmpty()) << "nothing may be sent of a wrong whole";
    std::ofstream(on.b) << "kind: Model\nmetadata: {name: n}\nspec: {path: /models/n}\n";
    Ran right = run_berth(on.node.socket(), "apply " + on.a + " " + on.b);
    EXPECT_EQ(right.exit_code, 0) << right.err;
    EXPECT_EQ(right.out, "applied Model/m, Model/n\n");
    ASSERT_EQ(on.changes(), 1u);
    const json::value body = json_of(on.node.seen().back().body);
    ASSERT_EQ(body.at("files").as_array().size(), 2u);
    EXPECT_EQ(body.at("files").at(0).at("file").as_string(), on.a) << "paths are this file's";
    EXPECT_THAT(std::string(body.at("files").at(1).at("text").as_string()), HasSubstr("/models/n"));
    EXPECT_EQ(on.if_match, "\"one\"") << "against what held when it began";
}

TEST(CliPolicy, ADocumentInTwoFilesIsRefusedWithBothPlaces) {
    PolicyNode on;
    on.node.start();
    std::ofstream(on.b) << "kind: Model\nmetadata: {name: m}\nspec: {path: /models/n}\n";
    Ran twice = run_berth(on.node.socket(), "apply " + on.a + " " + on.b);
    EXPECT_EQ(twice.exit_code, 1);
    EXPECT_THAT(twice.err, HasSubstr("b.yaml:1:1: Model 'm' is given twice; the other is at "));
    EXPECT_THAT(twice.err, HasSubstr("a.yaml:1:1"));
    EXPECT_THAT(on.node.seen(), IsEmpty());
}

TEST(CliPolicy, WhenSomebodyElseWasFasterNothingIsTriedAgain) {
    PolicyNode on;
    on.status = 412;
    on.node.start();
    Ran ran = run_berth(on.node.socket(), "apply " + on.a);
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_EQ(ran.err, "berth: ETagMismatch: somebody has changed it\n");
    EXPECT_EQ(on.changes(), 1u);
}

TEST(CliPolicy, ATagOfADiffIsWhatApplyIsHeldTo) {
    PolicyNode on;
    on.node.start();
    EXPECT_EQ(run_berth(on.node.socket(), "apply --if-match abc " + on.a).exit_code, 0);
    EXPECT_EQ(on.if_match, "\"abc\"");
    EXPECT_EQ(run_berth(on.node.socket(), "apply --if-match '\"abc\"' " + on.a).exit_code, 0);
    EXPECT_EQ(on.if_match, "\"abc\"");
    EXPECT_EQ(on.node.seen().size(), 2u) << "nothing is asked that is known";
}

TEST(CliPolicy, ResetGoesBackToTheFilesAndTakesNone) {
    PolicyNode on;
    on.node.start();
    Ran reset = run_berth(on.node.socket(), "apply --reset");
    EXPECT_EQ(reset.exit_code, 0) << reset.err;
    EXPECT_EQ(on.node.seen().back().method, "DELETE");
    EXPECT_EQ(run_berth(on.node.socket(), "apply --reset " + on.a).exit_code, 2);
    EXPECT_EQ(run_berth(on.node.socket(), "apply").exit_code, 2);
    EXPECT_EQ(on.changes(), 1u);
}

TEST(CliPolicy, DiffShowsBothValuesWhoWouldStartAgainAndHowToApplyExactlyThat) {
    PolicyNode on;
    on.node.on("POST", "/v1/policy:diff",
               R"({"etag":"\"one\"","changes":[)"
               R"({"document":"ColocationPolicy","field":"spec.mode","before":"Enforce",)"
               R"("after":"Observe"},)"
               R"({"document":"ColocationPolicy","field":"spec.triggers","before":"",)"
               R"("after":"{class: batch}"},)"
               R"({"document":"Model/m","field":"","before":"","after":"new"}],)"
               R"("added":[],"removed":[],"restarted":["chat","drafts"]})");
    on.node.start();
    Ran ran = run_berth(on.node.socket(), "diff " + on.a);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.out, "~ ColocationPolicy\n"
                       "    spec.mode: Enforce -> Observe\n"
                       "    spec.triggers: (none) -> {class: batch}\n"
                       "+ Model/m\n"
                       "\n"
                       "would start again: chat, drafts\n"
                       "to apply exactly this: berth apply --if-match '\"one\"' ...\n");
    Ran as_json = run_berth(on.node.socket(), "diff -o json " + on.a);
    EXPECT_EQ(json_of(as_json.out).at("restarted"), json_of(R"(["chat","drafts"])"));
}

TEST(CliPolicy, DiffOfNothingSaysSo) {
    PolicyNode on;
    on.node.on("POST", "/v1/policy:diff",
               R"({"etag":"\"one\"","changes":[],"added":[],"removed":[],"restarted":[]})");
    on.node.start();
    EXPECT_EQ(run_berth(on.node.socket(), "diff " + on.a).out, "nothing would change\n");
}

TEST(CliPolicy, PolicyPrintsWhatHoldsAndItsTag) {
    PolicyNode on;
    on.node.start();
    EXPECT_EQ(run_berth(on.node.socket(), "policy").out, "kind: Model\n");
    EXPECT_EQ(json_of(run_berth(on.node.socket(), "policy -o json").out).at("etag").as_string(),
              "\"one\"");
}

TEST(CliPolicy, ValidateNeedsNoDaemonPrintsTheDefaultsAndGivesAdviceOnStderr) {
    PolicyNode on;
    Ran ran = run_berth("/nowhere", "validate " + on.a);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("reclaimDeadline"));
    EXPECT_THAT(ran.out, HasSubstr("strategy: Spread"));
    EXPECT_THAT(ran.out, HasSubstr("/models/m"));
    EXPECT_THAT(ran.err, IsEmpty());
    Ran as_json = run_berth("/nowhere", "validate -o json " + on.a);
    EXPECT_EQ(json_of(as_json.out).at("documents"), json_of(R"(["Model/m"])"));
    std::ofstream(on.b) << "kind: ColocationPolicy\nmetadata: {name: p}\nspec:\n  triggers:\n"
                           "    - {class: batch, on: RequestArrival}\n";
    Ran noted = run_berth("/nowhere", "validate " + on.a + " " + on.b);
    EXPECT_EQ(noted.exit_code, 0);
    EXPECT_THAT(noted.err, StartsWith("berth: note: "));
    EXPECT_THAT(noted.err, HasSubstr("b.yaml:5:7: class 'batch' preempts nobody"));
}

TEST(CliPolicy, SchemaIsJsonAndAnUnknownKindIsRefusedWithTheNearest) {
    const Ran all = run_berth("/nowhere", "schema");
    EXPECT_EQ(json_of(all.out).at("oneOf").as_array().size(), 4u);
    const Ran one = run_berth("/nowhere", "schema Model");
    EXPECT_EQ(json_of(one.out).at("properties").at("kind").at("const").as_string(), "Model");
    const Ran wrong = run_berth("/nowhere", "schema model");
    EXPECT_EQ(wrong.exit_code, 1);
    EXPECT_THAT(wrong.err, HasSubstr("did you mean 'Model'?"));
}

} // namespace
} // namespace berth::test
