// SPDX-License-Identifier: Apache-2.0
// Goal: `berth rollout` as people who know kubectl expect it: what it sends, what it shows of the
// phases, when it comes back, and with which exit status. Method: the real program against an admin
// socket with canned answers.
#include "base/json.h"
#include "fake_node.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>

namespace berth::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kDocument =
    "kind: Instance\nmetadata: {name: chat}\nspec:\n  model: smollm2\n"
    "  resources: {requests: {memory: 1Gi}}\n  engine: {command: [berth-engine, --new]}\n";
constexpr const char* kBegun =
    R"({"id":"op-1","kind":"Rollout","instance":"chat","object":"instance/chat","dryRun":false,)"
    R"("state":"Succeeded","message":"rollout 3 of chat has begun","phases":[],"bytesFreed":0,)"
    R"("error":null,"ms":0.1})";

std::string in_phase(const std::string& phase, bool under_way, bool paused = false,
                     const std::string& reason = "", const std::string& message = "") {
    return json::serialize(json::object{{"instance", "chat"},
                                        {"number", 3},
                                        {"phase", phase},
                                        {"underWay", under_way},
                                        {"paused", paused},
                                        {"reason", reason},
                                        {"message", message}});
}

// Answers one after the other; the last one again and again.
FakeNode::Answer in_turn(std::vector<std::string> answers) {
    auto next = std::make_shared<size_t>(0);
    return [answers = std::move(answers), next](const http::Request&) {
        const size_t at = std::min((*next)++, answers.size() - 1);
        return http::text_response(answers[at], 200, "application/json");
    };
}

std::string document_in(const FakeNode& node) {
    const std::string path = node.folder() + "/chat.yaml";
    std::ofstream(path) << kDocument;
    return path;
}

TEST(Rollout, SendsTheDocumentAndWhatIsWantedOfIt) {
    FakeNode node;
    node.on("POST", "/v1/instances/{name}:rollout", kBegun, 202);
    node.start();
    const std::string path = document_in(node);
    const Ran ran = run_berth(node.socket(), "rollout chat -f " + path +
                                                 " --pause --max-unavailable 1 --reason 'new one'");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("rollout 3 of chat has begun"));
    ASSERT_EQ(node.seen().size(), 1U);
    EXPECT_EQ(node.seen()[0].body, kDocument);
    EXPECT_THAT(node.seen()[0].target, StartsWith("/v1/instances/chat:rollout?file="));
    EXPECT_THAT(node.seen()[0].target, HasSubstr("&pause=true"));
    EXPECT_THAT(node.seen()[0].target, HasSubstr("&maxUnavailable=1"));
    EXPECT_THAT(node.seen()[0].target, HasSubstr("&reason=new%20one"));
    EXPECT_THAT(node.seen()[0].target, Not(HasSubstr("inPlace")));
}

TEST(Rollout, WaitingTellsEachPhaseOnceAndComesBackWhenItIsOver) {
    FakeNode node;
    node.on("POST", "/v1/instances/{name}:rollout", kBegun, 202);
    node.on(
        "GET", "/v1/instances/{name}/rollout",
        in_turn({in_phase("Starting", true), in_phase("Starting", true),
                 in_phase("HandingOver", true), in_phase("Complete", false, false, "", "done")}));
    node.start();
    const Ran ran = run_berth(node.socket(), "rollout chat --wait -f " + document_in(node));
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.err, "rollout 3 of chat: Starting\nrollout 3 of chat: HandingOver\n");
    EXPECT_EQ(ran.out, "rollout 3 of chat: Complete: done\n");
}

TEST(Rollout, OneThatFailsEndsWithOneAndSaysWhy) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}/rollout",
            in_turn({in_phase("Starting", true),
                     in_phase("Failed", false, false, "StartFailed", "exit code 3")}));
    node.start();
    const Ran ran = run_berth(node.socket(), "rollout status chat");
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_THAT(ran.out, StartsWith("rollout 3 of chat: Starting\n"));
    EXPECT_THAT(ran.err, HasSubstr("exit code 3"));
    const Ran as_json = run_berth(node.socket(), "rollout status chat -o json");
    EXPECT_EQ(as_json.exit_code, 1);
    const auto shown = json::parse(as_json.out, "the output");
    ASSERT_TRUE(shown);
    EXPECT_EQ(shown->at("reason").as_string(), "StartFailed");
}

TEST(Rollout, APausedOneIsNotWaitedForOnceItIsReady) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}/rollout",
            in_turn({in_phase("Starting", true, true), in_phase("Ready", true, true)}));
    node.start();
    const Ran ran = run_berth(node.socket(), "rollout status chat");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("rollout 3 of chat: Ready (paused)"));
}

TEST(Rollout, ShownOnceWhereNobodyWantsToWait) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}/rollout", in_phase("Following", true));
    node.start();
    const Ran ran = run_berth(node.socket(), "rollout status chat --no-watch");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.out, "rollout 3 of chat: Following\n");
    EXPECT_EQ(node.seen().size(), 1U);
}

TEST(Rollout, AWaitThatIsToEndDoesAndLeavesTheRolloutAlone) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}/rollout", in_phase("Following", true));
    node.start();
    const Ran ran = run_berth(node.socket(), "rollout status chat --timeout 300ms");
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_THAT(ran.err, HasSubstr("it goes on"));
}

TEST(Rollout, PauseResumeAndUndoAreAskedForByTheirNames) {
    FakeNode node;
    for (const char* verb : {"pause", "resume", "undo"})
        node.on("POST", fmt::format("/v1/instances/{{name}}:{}Rollout", verb), kBegun, 202);
    node.start();
    for (const char* verb : {"pause", "resume", "undo"})
        EXPECT_EQ(
            run_berth(node.socket(), fmt::format("rollout {} chat --reason why", verb)).exit_code,
            0);
    ASSERT_EQ(node.seen().size(), 3U);
    EXPECT_EQ(node.seen()[2].target, "/v1/instances/chat:undoRollout");
    EXPECT_EQ(node.seen()[2].body, R"({"reason":"why"})");
    EXPECT_EQ(run_berth(node.socket(), "rollout undo chat --in-place").exit_code, 0);
    EXPECT_EQ(node.seen()[3].body, R"({"inPlace":true})");
}

TEST(Rollout, WrongWordsAreUsageErrorsAndABrokenFileIsNotSent) {
    FakeNode node;
    node.start();
    EXPECT_EQ(run_berth(node.socket(), "rollout chat").exit_code, 2);
    EXPECT_EQ(run_berth(node.socket(), "rollout -f x.yaml").exit_code, 2);
    EXPECT_EQ(run_berth(node.socket(), "rollout chat -f x.yaml --pause --in-place").exit_code, 2);
    EXPECT_EQ(run_berth(node.socket(), "rollout chat -f x.yaml --timeout soon").exit_code, 2);
    const std::string path = node.folder() + "/broken.yaml";
    std::ofstream(path) << "kind: Instance\nspec: {modle: x}\n";
    const Ran ran = run_berth(node.socket(), "rollout chat -f " + path);
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_THAT(ran.err, HasSubstr("broken.yaml:"));
    EXPECT_TRUE(node.seen().empty());
}

} // namespace
} // namespace berth::test
