// SPDX-License-Identifier: Apache-2.0
// Streams: chunks arrive as they are written, and a peer that leaves is noticed by the handler.
#include "tests/base/served.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gtest/gtest.h>

#include <atomic>

namespace berth::http {
namespace {

namespace asio = boost::asio;

// Writes `count` numbered lines, or until the peer is gone if `count` is negative.
StreamHandler counting(int count) {
    return [count](Request request, StreamPtr stream) -> asio::awaitable<void> {
        Headers headers;
        if (!co_await stream->start(200, "application/x-ndjson", headers))
            co_return;
        for (int i = 0; i != count && !request.peer->closed(); ++i) {
            std::string line = "{\"n\":" + std::to_string(i) + "}\n";
            if (!co_await stream->write(std::move(line)))
                co_return;
        }
    };
}

TEST(HttpStream, LinesComeInOrderAndTheStreamEnds) {
    Router router;
    router.add_stream("GET", "/lines", counting(1000));
    Served served(std::move(router));
    for (const std::string& endpoint : {served.unix_endpoint(), served.tcp_endpoint()}) {
        int next = 0;
        auto response = request_lines(endpoint, "GET", "/lines", {}, [&](std::string_view line) {
            EXPECT_EQ(line, "{\"n\":" + std::to_string(next) + "}");
            ++next;
            return true;
        });
        ASSERT_TRUE(response) << response.error().message;
        EXPECT_EQ(response->status, 200);
        EXPECT_EQ(response->content_type, "application/x-ndjson");
        EXPECT_EQ(next, 1000);
    }
}

TEST(HttpStream, TheConnectionCanBeUsedAfterwards) {
    Router router;
    router.add_stream("GET", "/lines", counting(2));
    Served served(std::move(router));
    UniqueFd fd = raw_connect(served.path());
    for (int i = 0; i < 2; ++i) {
        raw_send(fd.get(), "GET /lines HTTP/1.1\r\nHost: x\r\n\r\n");
        std::string all;
        ASSERT_TRUE(raw_read_until(fd.get(), "\r\n0\r\n\r\n", all)) << all;
        EXPECT_NE(all.find("Transfer-Encoding: chunked"), std::string::npos);
    }
}

TEST(HttpStream, AnOldPeerGetsThePlainBytes) {
    Router router;
    router.add_stream("GET", "/lines", counting(2));
    Served served(std::move(router));
    std::string all = raw_exchange(served.path(), "GET /lines HTTP/1.0\r\n\r\n");
    EXPECT_EQ(all.find("chunked"), std::string::npos);
    EXPECT_TRUE(all.ends_with("\r\n\r\n{\"n\":0}\n{\"n\":1}\n")) << all;
}

TEST(HttpStream, TheReaderMayStopAndTheWriterNotices) {
    Router router;
    router.add_stream("GET", "/lines", counting(-1));
    Served served(std::move(router));
    int seen = 0;
    auto response = request_lines(served.unix_endpoint(), "GET", "/lines", {},
                                  [&](std::string_view) { return ++seen < 10; });
    ASSERT_TRUE(response) << response.error().message;
    EXPECT_EQ(seen, 10);
    EXPECT_TRUE(eventually([&] { return served.connections() == 0; }));
}

// The engine's case: nothing is being written while the peer goes away.
void expect_silent_handler_learns(const std::string& head) {
    std::atomic<int> begun{0};
    std::atomic<bool> noticed{false};
    Router router;
    router.add_stream("POST", "/generate",
                      [&](Request request, StreamPtr) -> asio::awaitable<void> {
                          asio::steady_timer never(co_await asio::this_coro::executor,
                                                   asio::steady_timer::time_point::max());
                          request.peer->on_closed([&never] { never.cancel(); });
                          ++begun;
                          co_await never.async_wait(asio::as_tuple(asio::use_awaitable));
                          noticed = request.peer->closed();
                      });
    Served served(std::move(router));
    UniqueFd fd = raw_connect(served.path());
    raw_send(fd.get(), head);
    ASSERT_TRUE(eventually([&] { return begun == 1; }));
    fd.reset();
    EXPECT_TRUE(eventually([&] { return noticed.load(); }));
    EXPECT_TRUE(eventually([&] { return served.connections() == 0; }));
}

TEST(HttpStream, ASilentHandlerLearnsThatItsPeerIsGone) {
    expect_silent_handler_learns(
        "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
}

TEST(HttpStream, APeerThatDoesNotReadIsGivenUp) {
    ServerLimits limits;
    limits.write_max = std::chrono::milliseconds(150);
    std::atomic<bool> given_up{false};
    Router router;
    router.add_stream("GET", "/flood", [&](Request, StreamPtr stream) -> asio::awaitable<void> {
        Headers headers;
        (void)co_await stream->start(200, "text/plain", headers);
        for (;;) {
            std::string chunk(size_t{1} << 20, 'x');
            auto written = co_await stream->write(std::move(chunk));
            if (!written) {
                given_up = written.error().code == ErrorCode::kUnavailable;
                co_return;
            }
        }
    });
    Served served(std::move(router), limits);
    UniqueFd fd = raw_connect(served.path());
    raw_send(fd.get(), "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(eventually([&] { return given_up.load(); }));
    EXPECT_TRUE(eventually([&] { return served.connections() == 0; }));
}

TEST(HttpStream, MayAnswerInOnePieceInstead) {
    Router router;
    router.add_stream("GET", "/either", [](Request, StreamPtr stream) -> asio::awaitable<void> {
        Response response =
            error_response(Error{ErrorCode::kNotFound, "too old", "TooOld", 0}, 410);
        (void)co_await stream->respond(std::move(response));
    });
    router.add_stream("GET", "/neither",
                      [](Request, StreamPtr) -> asio::awaitable<void> { co_return; });
    Served served(std::move(router));
    bool called = false;
    auto response = request_lines(served.unix_endpoint(), "GET", "/either", {},
                                  [&](std::string_view) { return called = true; });
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 410);
    EXPECT_EQ(error_from(*response).reason, "TooOld");
    EXPECT_FALSE(called);
    EXPECT_EQ(request(served.unix_endpoint(), "GET", "/neither")->status, 500);
}

TEST(HttpStream, ACutStreamIsAnErrorForTheReader) {
    Router router;
    router.add_stream("GET", "/cut", [](Request, StreamPtr stream) -> asio::awaitable<void> {
        Headers headers;
        (void)co_await stream->start(200, "text/plain", headers);
        std::string line = "one\n";
        (void)co_await stream->write(std::move(line));
        throw std::runtime_error("half way");
    });
    Served served(std::move(router));
    int seen = 0;
    auto response = request_lines(served.unix_endpoint(), "GET", "/cut", {},
                                  [&](std::string_view) { return ++seen > 0; });
    ASSERT_FALSE(response);
    EXPECT_EQ(response.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(seen, 1);
}

TEST(HttpStream, StoppingTheServerEndsStreams) {
    Router router;
    std::atomic<int> begun{0};
    router.add_stream("GET", "/watch", [&](Request, StreamPtr stream) -> asio::awaitable<void> {
        Headers headers;
        (void)co_await stream->start(200, "application/x-ndjson", headers);
        ++begun;
        asio::steady_timer never(co_await asio::this_coro::executor,
                                 asio::steady_timer::time_point::max());
        co_await never.async_wait(asio::use_awaitable);
    });
    Served served(std::move(router));
    std::thread watcher([&] {
        auto response = request_lines(served.unix_endpoint(), "GET", "/watch", {},
                                      [](std::string_view) { return true; });
        EXPECT_FALSE(response);
    });
    EXPECT_TRUE(eventually([&] { return begun == 1; }));
    served.stop();
    watcher.join();
}

} // namespace
} // namespace berth::http
