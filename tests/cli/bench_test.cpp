// SPDX-License-Identifier: Apache-2.0
// Goal: `berth bench daemon` measures what it says it does. Method: its generator against a node
// with canned answers that counts; its node under decision at a small size; the whole of it once.
// No figure is judged here.
#include "base/json.h"
#include "fake_node.h"
#include "scheduler/cli/bench/admin_load.h"
#include "scheduler/cli/bench/bare_http.h"
#include "scheduler/cli/bench/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

namespace berth::test {
namespace {

using cli::bench::decision_figures;
using cli::bench::Figure;
using cli::bench::LoadPlan;
using cli::bench::NodeShape;
using cli::bench::run_load;
using testing::HasSubstr;

LoadPlan plan_of(const FakeNode& node) {
    LoadPlan plan;
    plan.socket = node.socket();
    plan.reads = {"/v1/instances", "/v1/operations/{operation}"};
    plan.connections = 3;
    plan.duration = std::chrono::milliseconds(200);
    plan.operation = "op-0";
    return plan;
}

size_t seen_of(const FakeNode& node, const std::string& target) {
    const std::vector<FakeNode::Seen> seen = node.seen();
    return static_cast<size_t>(
        std::ranges::count_if(seen, [&](const auto& one) { return one.target == target; }));
}

TEST(AdminLoad, CountsEachReadThatTheNodeAnsweredAndItsBytes) {
    FakeNode node;
    node.on("GET", "/v1/instances", std::string(100'000, ' ') + "{}");
    node.on("GET", "/v1/operations/{id}", R"({"id":"op-0","state":"Succeeded"})");
    node.start();
    auto outcome = run_load(plan_of(node));
    ASSERT_TRUE(outcome) << outcome.error().message;
    const size_t lists = seen_of(node, "/v1/instances");
    const size_t operations = seen_of(node, "/v1/operations/op-0");
    EXPECT_GT(lists, 0U);
    EXPECT_GT(operations, 0U);
    // What was under way at the end is not counted: one a connection at most.
    EXPECT_LE(outcome->read_ms.size(), lists + operations);
    EXPECT_GE(outcome->read_ms.size() + 3, lists + operations);
    EXPECT_GE(outcome->body_bytes + 3 * 100'002, lists * 100'002);
    EXPECT_TRUE(outcome->change_ms.empty());
}

TEST(AdminLoad, ARefusedReadIsAnErrorThatQuotesIt) {
    FakeNode node;
    node.on("GET", "/v1/instances", R"({"message":"not today"})", 503);
    node.on("GET", "/v1/operations/{id}", "{}");
    node.start();
    auto outcome = run_load(plan_of(node));
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, HasSubstr("503"));
    EXPECT_THAT(outcome.error().message, HasSubstr("not today"));
}

TEST(AdminLoad, PreemptsAndResumesEachInstanceInTurnAndWaitsForTheEnd) {
    FakeNode node;
    node.on("GET", "/v1/instances", "{}");
    const std::string begun = R"({"id":"op-7","state":"Running"})";
    node.on("POST", "/v1/instances/{name}:preempt", begun, 202);
    node.on("POST", "/v1/instances/{name}:resume", begun, 202);
    node.on("GET", "/v1/operations/{id}", R"({"id":"op-7","state":"Succeeded"})");
    node.start();
    LoadPlan plan = plan_of(node);
    plan.reads = {"/v1/instances"};
    plan.instances = {"a", "b"};
    plan.changes_per_second = 100;
    auto outcome = run_load(plan);
    ASSERT_TRUE(outcome) << outcome.error().message;
    std::map<std::string, std::vector<std::string>> changes; // by instance
    size_t waited = 0;
    for (const FakeNode::Seen& one : node.seen()) {
        if (one.method == "POST")
            changes[one.target.substr(0, one.target.find(':'))].push_back(one.target);
        waited += one.target == "/v1/operations/op-7?wait=10s" ? 1 : 0;
    }
    ASSERT_EQ(changes.size(), 2U);
    size_t begun_count = 0;
    for (const auto& [name, targets] : changes) {
        begun_count += targets.size();
        for (size_t n = 0; n < targets.size(); ++n)
            EXPECT_EQ(targets[n], name + (n % 2 == 0 ? ":preempt" : ":resume"));
    }
    EXPECT_EQ(begun_count, waited);
    EXPECT_GT(outcome->change_ms.size(), 0U);
    EXPECT_LE(outcome->change_ms.size(), 20U) << "at 100 a second, in 200 ms";
}

TEST(AdminLoad, AFailedOperationIsAnError) {
    FakeNode node;
    node.on("GET", "/v1/instances", "{}");
    node.on("POST", "/v1/instances/{name}:preempt", R"({"id":"op-7","state":"Failed"})", 202);
    node.start();
    LoadPlan plan = plan_of(node);
    plan.reads = {"/v1/instances"};
    plan.instances = {"a"};
    plan.changes_per_second = 1000;
    auto outcome = run_load(plan);
    ASSERT_FALSE(outcome);
    EXPECT_THAT(outcome.error().message, HasSubstr("op-7"));
}

TEST(BareHttp, AnswersTheGeneratorWithThatManyBytes) {
    FakeNode node; // for its folder
    LoadPlan plan = plan_of(node);
    plan.socket = node.folder() + "/bare.sock";
    auto server = cli::bench::BareHttp::start(plan.socket, 1234);
    ASSERT_TRUE(server) << server.error().message;
    auto outcome = run_load(plan);
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_GT(outcome->read_ms.size(), 0U);
    EXPECT_EQ(outcome->body_bytes, outcome->read_ms.size() * 1234);
}

std::map<std::string, size_t> decisions_of(const Figure& figure) {
    std::map<std::string, size_t> counted;
    for (const auto& [kind, facts] : figure.facts.at("kinds").get_object())
        counted[kind] = facts.at("decisions").to_number<size_t>();
    return counted;
}

TEST(Decisions, WhereThereIsRoomAllRunAndTheSameLifeIsLivedTwice) {
    const NodeShape shape{2, 40, false};
    auto once = decision_figures(shape, 400);
    ASSERT_TRUE(once) << once.error().message;
    ASSERT_EQ(once->size(), 2U);
    EXPECT_EQ(once->front().facts.at("states"), (json::value{{"Running", 40}}));
    const std::map<std::string, size_t> kinds = decisions_of(once->back());
    for (const char* kind : {"report", "report of a queue", "arrival", "end", "death", "preempt",
                             "session", "lease", "timer", "engine"})
        EXPECT_TRUE(kinds.contains(kind)) << kind;
    size_t all = 0;
    for (const auto& [kind, count] : kinds)
        all += count;
    EXPECT_EQ(all, once->back().samples.size());
    auto again = decision_figures(shape, 400);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(kinds, decisions_of(again->back()));
}

TEST(Decisions, OnACrowdedNodeManyWaitBeforeAndAfter) {
    auto figures = decision_figures({2, 120, true}, 200);
    ASSERT_TRUE(figures) << figures.error().message;
    for (const Figure& figure : *figures) {
        const auto& states = figure.facts.at("states").get_object();
        EXPECT_GT(states.at("Running").to_number<size_t>(), 20U);
        EXPECT_GT(states.at("Pending").to_number<size_t>(), 20U);
    }
}

TEST(BenchDaemon, StartsANodeOfItsOwnMeasuresItAndTakesItAway) {
    FakeNode away; // its socket is never there: no node runs
    const std::string tmp = away.folder();
    ASSERT_EQ(::setenv("TMPDIR", tmp.c_str(), 1), 0);
    Ran ran = run_berth(away.socket(),
                        "bench daemon --json --rounds 1 --seconds 0.5 --devices 2 --instances 8 "
                        "--events 50");
    ::unsetenv("TMPDIR");
    ASSERT_EQ(ran.exit_code, 0) << ran.out << ran.err;
    std::map<std::string, json::object> figures;
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);) {
        auto parsed = json::parse(line, "a figure");
        ASSERT_TRUE(parsed) << line;
        figures[std::string(parsed->at("figure").get_string())] = parsed->get_object();
    }
    for (const char* name :
         {"resident", "cpu", "gpu", "reads", "reads-while-changing", "change", "decision",
          "decision-start", "decision-crowded", "decision-crowded-start"})
        EXPECT_TRUE(figures.contains(name)) << name << "\n" << ran.out;
    EXPECT_GT(figures["resident"].at("p50").to_number<double>(), 1e6);
    EXPECT_GT(figures["reads"].at("rounds").to_number<size_t>(), 10U);
    EXPECT_GT(figures["reads"].at("perSecond").to_number<double>(), 0.0);
    EXPECT_GT(figures["change"].at("rounds").to_number<size_t>(), 0U);
    EXPECT_EQ(figures["decision"].at("devices"), 2);
    EXPECT_EQ(figures["decision"].at("instances"), 8);
    for (const auto& entry : std::filesystem::directory_iterator(tmp))
        ADD_FAILURE() << entry.path() << " was left";
}

} // namespace
} // namespace berth::test
