// SPDX-License-Identifier: Apache-2.0
// Goal: a policy can be tried on an arrival trace before it is applied. Method: small traces and
// documents; what is compared are two policies on the same trace, never a figure by itself.
#include "policies/yaml.h"
#include "scheduler/simulate/replay.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace berth::simulate {

namespace {

std::string documents_with(const std::string& policy, const std::string& batch_memory = "20Gi") {
    return "apiVersion: berth/v1\nkind: ColocationPolicy\nmetadata: {name: p}\nspec: {" + policy +
           "}\n---\n"
           "kind: Model\nmetadata: {name: m}\nspec: {path: /models/m}\n---\n"
           "kind: Instance\nmetadata: {name: chat}\n"
           "spec: {model: m, priorityClassName: online, resources: {requests: {memory: 16Gi}, "
           "limits: {memory: 30Gi}}, engine: {command: [e]}}\n---\n"
           "kind: Instance\nmetadata: {name: nightly}\n"
           "spec: {model: m, resources: {requests: {memory: " +
           batch_memory + "}, limits: {memory: " + batch_memory + "}}, engine: {command: [e]}}\n";
}

std::vector<Arrival> requests(size_t count, Nanoseconds gap) {
    std::vector<Arrival> all;
    for (size_t n = 0; n < count; ++n)
        all.push_back({gap * static_cast<int64_t>(n), 500 + n % 7 * 100, 50 + n % 5 * 40});
    return all;
}

ReplayReport played(const std::string& policy, const std::vector<Arrival>& arrivals) {
    auto documents = policies::parse_documents(documents_with(policy), "test.yaml");
    EXPECT_TRUE(documents) << documents.error().message;
    auto report = replay(*documents, arrivals);
    EXPECT_TRUE(report) << report.error().message;
    return *report;
}

} // namespace

TEST(Arrivals, AreReadByTheNamesOfTheirColumns) {
    const auto azure = read_arrivals("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                     "2023-11-16 18:17:03.9799600,4808,10\r\n"
                                     "2023-11-16 18:17:05.4799600,3180,8\n",
                                     "a.csv");
    ASSERT_TRUE(azure) << azure.error().message;
    ASSERT_EQ(azure->size(), 2U);
    EXPECT_EQ((*azure)[0].at, Nanoseconds(0));
    EXPECT_NEAR(static_cast<double>((*azure)[1].at.count()), 1.5e9, 1e6);
    EXPECT_EQ((*azure)[1].input_tokens, 3180U);
    const auto other = read_arrivals("# of a Tuesday\nid,output_tokens,arrived_at,input_tokens\n"
                                     "7,9,12.5,100\n8,10,2.5,200\n",
                                     "b.csv");
    ASSERT_TRUE(other) << other.error().message;
    ASSERT_EQ(other->size(), 2U);
    EXPECT_EQ((*other)[0].input_tokens, 200U); // in the order of time
    EXPECT_EQ((*other)[1].at, std::chrono::seconds(10));
    EXPECT_EQ((*other)[1].output_tokens, 9U);
}

TEST(Arrivals, WhatCannotBeReadIsNamedWithItsLine) {
    const auto text_of = [](const char* text) {
        const auto read = read_arrivals(text, "t.csv");
        return read ? std::string("it was read") : read.error().message;
    };
    EXPECT_EQ(text_of("when,input_tokens,output_tokens\n1,2,3\n").rfind("t.csv:1: ", 0), 0U);
    EXPECT_NE(text_of("arrived_at,output_tokens\n1,2\n").find("input"), std::string::npos);
    EXPECT_EQ(
        text_of("arrived_at,input_tokens,output_tokens\n1,2,3\nsoon,2,3\n").rfind("t.csv:3: ", 0),
        0U);
    EXPECT_NE(text_of("arrived_at,input_tokens,output_tokens\n1,-2,3\n").find("'-2'"),
              std::string::npos);
    EXPECT_NE(text_of("arrived_at,input_tokens,output_tokens\n1,2\n").find("2 columns"),
              std::string::npos);
    EXPECT_NE(text_of("arrived_at,input_tokens,output_tokens\n").find("no arrivals"),
              std::string::npos);
}

TEST(Replay, AllRequestsAreServedAndBatchWorksBetweenThem) {
    const ReplayReport report =
        played("sharing: {compute: Gate}", requests(40, std::chrono::seconds(20)));
    EXPECT_EQ(report.requests, 40U);
    EXPECT_EQ(report.not_served, 0U);
    EXPECT_GT(report.ttft_ms.p50, 0);
    EXPECT_LE(report.ttft_ms.p50, report.ttft_ms.p99);
    EXPECT_GE(report.gate_closings, 30U);
    const double hours = report.seconds / 3600;
    EXPECT_GT(report.batch_hours, hours / 2);
    // Half a minute and more of the warm-up counts too; never more than the node's whole time.
    EXPECT_LT(report.batch_hours, hours + 0.1);
}

TEST(Replay, AGateAddsLessDelayThanTimeSlicesDo) {
    const std::vector<Arrival> arrivals = requests(60, std::chrono::seconds(8));
    const ReplayReport gate = played("sharing: {compute: Gate}", arrivals);
    const ReplayReport slices = played("sharing: {compute: TimeSlice}", arrivals);
    EXPECT_LT(gate.ttft_added_ms.p50, slices.ttft_added_ms.p50);
    EXPECT_GT(gate.ttft_added_ms.p50, 0);
    EXPECT_LT(gate.batch_hours, slices.batch_hours);
    EXPECT_EQ(slices.gate_closings, 0U);
}

TEST(Replay, BatchWinsMoreHoursWhereFewerRequestsCome) {
    const ReplayReport busy =
        played("sharing: {compute: Gate}", requests(400, std::chrono::seconds(2)));
    const ReplayReport calm =
        played("sharing: {compute: Gate}", requests(40, std::chrono::seconds(20)));
    EXPECT_LT(busy.batch_hours / busy.seconds, calm.batch_hours / calm.seconds);
}

TEST(Replay, TheSameTraceGivesTheSameReport) {
    const std::vector<Arrival> arrivals = requests(50, std::chrono::seconds(5));
    EXPECT_EQ(to_text(played("sharing: {compute: Gate}", arrivals)),
              to_text(played("sharing: {compute: Gate}", arrivals)));
}

TEST(Replay, AnInstanceThatDoesNotFitIsShownWaitingWithTheReason) {
    auto documents = policies::parse_documents(documents_with("", "70Gi"), "test.yaml");
    ASSERT_TRUE(documents) << documents.error().message;
    const auto report = replay(*documents, requests(20, std::chrono::seconds(10)));
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->not_served, 0U);
    ASSERT_TRUE(report->waits.contains("nightly"));
    EXPECT_GT(report->waits.at("nightly").longest_seconds, 100);
    EXPECT_NE(report->waits.at("nightly").last_reason, "");
    EXPECT_NE(to_text(*report).find("nightly"), std::string::npos);
    EXPECT_EQ(report->batch_hours, 0);
}

TEST(Replay, APolicyWithoutAnOnlineInstanceIsRefusedWithTheReason) {
    auto documents = policies::parse_documents(documents_with(""), "test.yaml");
    ASSERT_TRUE(documents) << documents.error().message;
    documents->instances.erase(documents->instances.begin());
    const auto report = replay(*documents, requests(2, std::chrono::seconds(1)));
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().reason, "NoOnlineInstance");
}

TEST(Replay, TheSmallTraceOfTheTreePlays) {
    std::ifstream file(BERTH_SMALL_ARRIVALS);
    std::stringstream text;
    text << file.rdbuf();
    const auto arrivals = read_arrivals(text.str(), "small_arrivals.csv");
    ASSERT_TRUE(arrivals) << arrivals.error().message;
    const ReplayReport report = played("", *arrivals);
    EXPECT_EQ(report.requests, arrivals->size());
    EXPECT_EQ(report.not_served, 0U);
}

} // namespace berth::simulate
