// SPDX-License-Identifier: Apache-2.0
// What one peer may take of the server, and how it is told.
#include "base/http/task_group.h"
#include "base/http/turnstile.h"
#include "tests/base/served.h"

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace berth::http {
namespace {

namespace asio = boost::asio;

Router small_router() {
    Router router;
    router.add("GET", "/x",
               [](Request) -> asio::awaitable<Response> { co_return text_response("ok"); });
    return router;
}

constexpr const char* kGet = "GET /x HTTP/1.1\r\nHost: x\r\n\r\n";

TEST(HttpLimits, OneUserHasHisShareOfTheConnectionsAndIsToldSo) {
    ServerLimits limits;
    limits.connections_per_peer_max = 2;
    Served served(small_router(), limits);
    UniqueFd first = raw_connect(served.path());
    UniqueFd second = raw_connect(served.path());
    ASSERT_TRUE(eventually([&] { return served.connections() == 2; }));
    std::string all = raw_exchange(served.path(), kGet);
    EXPECT_TRUE(all.starts_with("HTTP/1.1 503 ")) << all;
    EXPECT_NE(all.find(fmt::format("2 connections of user {}", ::getuid())), std::string::npos);
    // Those of TCP are another peer's.
    EXPECT_EQ(request(served.tcp_endpoint(), "GET", "/x")->status, 200);
    first.reset();
    ASSERT_TRUE(eventually([&] { return served.connections() == 1; }));
    EXPECT_EQ(request(served.unix_endpoint(), "GET", "/x")->status, 200);
}

TEST(HttpLimits, AHeaderHasSoManyFieldsAndNoMore) {
    ServerLimits limits;
    limits.headers_max = 10;
    Served served(small_router(), limits);
    auto with = [&](int fields) {
        std::string text = "GET /x HTTP/1.1\r\nConnection: close\r\n";
        for (int i = 1; i < fields; ++i)
            text += fmt::format("X-{}: y\r\n", i);
        return raw_exchange(served.path(), text + "\r\n");
    };
    EXPECT_TRUE(with(10).starts_with("HTTP/1.1 200 ")) << with(10);
    EXPECT_TRUE(with(11).starts_with("HTTP/1.1 431 ")) << with(11);
}

TEST(HttpLimits, AHeaderThatTakesTooLongIsEndedThoughABodyMayTakeLonger) {
    ServerLimits limits;
    limits.header_max = std::chrono::milliseconds(200);
    limits.request_max = std::chrono::milliseconds(60'000);
    Served served(small_router(), limits);
    EXPECT_EQ(raw_exchange(served.path(), ""), "") << "one that never speaks";
    std::string half = raw_exchange(served.path(), "GET /x HTTP/1.1\r\nHost:");
    EXPECT_TRUE(half.starts_with("HTTP/1.1 408 ")) << half;
}

TEST(HttpLimits, AConnectionEndsAfterSoManyRequestsWithAWordInTheLastAnswer) {
    ServerLimits limits;
    limits.requests_max = 3;
    Served served(small_router(), limits);
    UniqueFd fd = raw_connect(served.path());
    std::string all;
    for (int i = 0; i < 3; ++i) {
        all.clear();
        raw_send(fd.get(), kGet);
        ASSERT_TRUE(raw_read_until(fd.get(), "ok", all)) << i;
        EXPECT_EQ(all.find("Connection: close") != std::string::npos, i == 2) << all;
    }
    raw_send(fd.get(), kGet);
    all.clear();
    raw_read_until(fd.get(), "", all);
    EXPECT_EQ(all, "");
}

// Passages that wait are let through in the order in which they came, so many a turn, and what
// else was posted has its turn in between.
TEST(Turnstile, LetsSoManyPassATurnInTheirOrder) {
    asio::io_context context;
    Turnstile turnstile(context, 3);
    TaskGroup tasks(context);
    std::vector<int> passed;
    auto pass = [](Turnstile stile, std::vector<int>* into, int number) -> asio::awaitable<void> {
        co_await stile.pass();
        into->push_back(number);
    };
    for (int i = 0; i < 10; ++i)
        tasks.start("pass", pass(turnstile, &passed, i));
    std::vector<size_t> seen; // how many had passed, at each turn of another's
    std::function<void()> other = [&] {
        seen.push_back(passed.size());
        if (passed.size() < 10)
            asio::post(context, other);
    };
    asio::post(context, other);
    context.run();
    EXPECT_EQ(passed, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    for (size_t i = 1; i < seen.size(); ++i)
        EXPECT_LE(seen[i] - seen[i - 1], 3U) << i;
}

} // namespace
} // namespace berth::http
