// SPDX-License-Identifier: Apache-2.0
// Goal: what `berth bench colocate` asks and hears is what went over the wire. Method: an engine's
// streams as text, and a real HTTP server with canned answers.
#include "base/json.h"
#include "scheduler/cli/bench/colocate/engine_text.h"
#include "scheduler/cli/bench/colocate/open_loop.h"
#include "tests/base/served.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

namespace berth::cli::bench {
namespace {

using testing::HasSubstr;

std::string event(const std::string& text, const char* finish = "null") {
    return R"(data: {"choices":[{"index":0,"text":")" + text + R"(","finish_reason":)" + finish +
           "}],\"usage\":null}\n\n";
}
std::string usage(int tokens) {
    return R"(data: {"choices":[],"usage":{"completion_tokens":)" + std::to_string(tokens) +
           "}}\n\n";
}
const std::string kDone = "data: [DONE]\n\n";

TEST(AnswerReader, TimesEachEventByThePieceThatMadeItWhole) {
    Answer answer;
    AnswerReader reader(answer);
    const std::string first = event("He");
    reader.take(first.substr(0, 20), 1.0);
    EXPECT_TRUE(answer.event_s.empty());
    reader.take(first.substr(20) + event("llo"), 2.0);
    reader.take(event("", "\"length\"") + usage(4) + kDone, 3.0);
    EXPECT_EQ(answer.event_s, (std::vector<double>{2, 2, 3}));
    EXPECT_EQ(answer.full_s, (std::vector<double>{2, 2}));
    EXPECT_EQ(answer.text, "Hello");
    EXPECT_EQ(answer.tokens, 4U);
    EXPECT_TRUE(answer.done);
}

TEST(AnswerReader, AnErrorWithinTheStreamIsNoAnswer) {
    Answer answer;
    AnswerReader reader(answer);
    reader.take(event("He") + "data: {\"error\":{\"message\":\"stopping\"}}\n\n", 1.0);
    EXPECT_FALSE(answer.done);
    EXPECT_EQ(answer.error, "stopping");
    Answer broken;
    AnswerReader(broken).take("data: {not json}\n\n" + kDone, 1.0);
    EXPECT_FALSE(broken.done);
}

TEST(CompletionRequest, HasExactlyTheWantedTokensOfTheVocabularyAndItsLength) {
    Asked asked;
    asked.vocabulary = 40;
    const std::string text = completion_request(asked, 7, {0, 300, 9});
    const size_t body_at = text.find("\r\n\r\n") + 4;
    const auto body = json::parse(text.substr(body_at), "the body");
    ASSERT_TRUE(body) << body.error().message;
    EXPECT_THAT(text, HasSubstr("Content-Length: " + std::to_string(text.size() - body_at)));
    EXPECT_EQ(body->at("max_tokens"), 9);
    EXPECT_EQ(body->at("stream"), true);
    const auto& prompt = body->at("prompt").as_array();
    ASSERT_EQ(prompt.size(), 300U);
    for (const auto& token : prompt)
        EXPECT_TRUE(token.as_int64() >= 0 && token.as_int64() < 40);
    EXPECT_EQ(text, completion_request(asked, 7, {0, 300, 9})) << "the same in each phase";
    EXPECT_NE(text, completion_request(asked, 8, {0, 300, 9}));
}

TEST(BatchCountersOfMetrics, AreReadFromTheirLinesAndAMissingOneIsNothing) {
    std::string metrics = "# TYPE berth_engine_generated_tokens_total counter\n"
                          "berth_engine_generated_tokens_total 1.5e+06\n"
                          "berth_engine_prefilled_tokens_total 10\n"
                          "berth_engine_gate_pauses_total 3\n"
                          "berth_engine_preemptions_total 0\n";
    EXPECT_FALSE(batch_counters(metrics));
    metrics += "berth_engine_requests_done_total 12\n";
    const auto counters = batch_counters(metrics);
    ASSERT_TRUE(counters);
    EXPECT_EQ(counters->tokens, 1'500'000U);
    EXPECT_EQ(counters->gate_pauses, 3U);
    EXPECT_EQ(counters->requests_done, 12U);
}

TEST(EndpointFrom, TakesAddressesInNumbersAlone) {
    const auto v6 = endpoint_from("http://[::1]:81");
    ASSERT_TRUE(v6);
    EXPECT_EQ(v6->host, "::1");
    EXPECT_EQ(v6->port, 81);
    for (const char* url : {"", "http://", "http://127.0.0.1", "unix:/a", "http://h:99999"})
        EXPECT_FALSE(endpoint_from(url)) << url;
}

// An engine that answers at once, and refuses every third request.
class PlayedEngine {
  public:
    PlayedEngine() : served_(routes()) {}
    Endpoint endpoint() const { return endpoint_from(served_.tcp_endpoint()).value(); }
    size_t connections() { return served_.connections(); }
    std::atomic<int> asked{0};

  private:
    http::Router routes() {
        http::Router router;
        router.add("POST", "/v1/completions",
                   [this](http::Request request) { return answer(std::move(request)); });
        router.add("GET", "/metrics", [](http::Request request) { return metrics(request); });
        return router;
    }
    boost::asio::awaitable<http::Response> answer(http::Request) {
        if (++asked % 3 == 0)
            co_return http::error_response(Error{ErrorCode::kResourceExhausted, "full", "", 0});
        co_return http::text_response(event("x", "\"length\"") + usage(1) + kDone, 200,
                                      "text/event-stream");
    }
    static boost::asio::awaitable<http::Response> metrics(http::Request) {
        co_return http::text_response("\nberth_engine_generated_tokens_total 5\n"
                                      "berth_engine_prefilled_tokens_total 1\n"
                                      "berth_engine_gate_pauses_total 0\n"
                                      "berth_engine_preemptions_total 0\n"
                                      "berth_engine_requests_done_total 0\n");
    }
    http::Served served_;
};

LoopPlan plan_for(const PlayedEngine& engine, size_t requests) {
    LoopPlan plan;
    plan.online = engine.endpoint();
    for (size_t n = 0; n < requests; ++n) {
        plan.requests.push_back(completion_request(Asked(), n, {0, 4, 1}));
        plan.due_s.push_back(0.02 * static_cast<double>(n));
    }
    return plan;
}

TEST(OpenLoop, EachRequestGoesOutWhenItIsDueAndARefusalIsKeptWithItsWords) {
    PlayedEngine engine;
    LoopPlan plan = plan_for(engine, 9);
    plan.batch = engine.endpoint();
    plan.window_s = 0.35;
    const auto outcome = run_loop(std::move(plan));
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_EQ(engine.asked, 9);
    size_t done = 0, refused = 0;
    for (const Answer& answer : outcome->answers) {
        EXPECT_GE(answer.sent_s, answer.due_s);
        EXPECT_GE(answer.end_s, answer.sent_s);
        done += answer.done ? 1 : 0;
        refused += answer.error.find("full") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(done, 6U);
    EXPECT_EQ(refused, 3U);
    ASSERT_FALSE(outcome->batch.empty());
    EXPECT_EQ(outcome->batch.front().counters.tokens, 5U);
}

TEST(OpenLoop, AnEngineThatIsNotThereIsAnErrorOfEachRequest) {
    LoopPlan plan;
    plan.online = {"127.0.0.1", 1};
    plan.requests = {metrics_request(), metrics_request()};
    plan.one_by_one = true;
    const auto outcome = run_loop(std::move(plan));
    ASSERT_TRUE(outcome);
    for (const Answer& answer : outcome->answers) {
        EXPECT_FALSE(answer.done);
        EXPECT_THAT(answer.error, HasSubstr("connecting"));
    }
}

TEST(OpenLoop, WhatIsNotAnsweredInTimeIsSaidSoAndTheLoopEnds) {
    http::Router router;
    router.add("POST", "/v1/completions",
               [](http::Request request) -> boost::asio::awaitable<http::Response> {
                   // Never: until the client leaves.
                   auto gone = std::make_shared<boost::asio::steady_timer>(
                       co_await boost::asio::this_coro::executor,
                       std::chrono::steady_clock::time_point::max());
                   std::function<void()> wake = [gone] { gone->cancel(); };
                   request.peer->on_closed(std::move(wake));
                   (void)co_await gone->async_wait(
                       boost::asio::as_tuple(boost::asio::use_awaitable));
                   co_return http::text_response("late");
               });
    http::Served served(std::move(router));
    LoopPlan plan;
    plan.online = endpoint_from(served.tcp_endpoint()).value();
    plan.requests = {completion_request(Asked(), 0, {0, 4, 1})};
    plan.due_s = {0};
    plan.window_s = 0.05;
    plan.patience_s = 0.2;
    const auto outcome = run_loop(std::move(plan));
    ASSERT_TRUE(outcome);
    EXPECT_FALSE(outcome->answers[0].done);
    EXPECT_THAT(outcome->answers[0].error, HasSubstr("no answer by"));
}

} // namespace
} // namespace berth::cli::bench
