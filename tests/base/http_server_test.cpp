// SPDX-License-Identifier: Apache-2.0
// A real server on Unix and TCP sockets against the client and against bytes written by hand.
#include "base/json.h"
#include "tests/base/served.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace berth::http {
namespace {

namespace asio = boost::asio;

// Answers with what it understood of the request.
asio::awaitable<Response> echo(Request request) {
    json::object shown{
        {"method", request.method},
        {"path", request.path},
        {"body", request.body},
        {"uid", request.credentials ? static_cast<int>(request.credentials->uid) : -1},
        {"pid", request.credentials ? request.credentials->pid : -1}};
    for (const auto& [name, text] : request.query)
        shown["?" + name] = text;
    for (const auto& [name, text] : request.params)
        shown["{" + name + "}"] = text;
    if (const std::string* header = request.headers.find("x-test"))
        shown["header"] = *header;
    co_return json_response(shown);
}

Router echo_router() {
    Router router;
    router.add("GET", "/echo/{name}", echo);
    router.add("POST", "/echo/{name}", echo);
    router.add("POST", "/echo/{name}:verb", echo);
    router.add("GET", "/throws", [](Request) -> asio::awaitable<Response> {
        throw std::runtime_error("the handler's own words");
        co_return Response{};
    });
    router.add("GET", "/refuses", [](Request) -> asio::awaitable<Response> {
        co_return error_response(
            Error{ErrorCode::kFailedPrecondition, "it sleeps", "AlreadyPaused", 0});
    });
    return router;
}

std::string get_text(const json::value& value, const char* field) {
    return std::string(value.at(field).as_string());
}

TEST(HttpServer, HandsTheRequestOverWhole) {
    Served served(echo_router());
    CallOptions options;
    options.headers.set("X-Test", "yes");
    for (const std::string& endpoint : {served.unix_endpoint(), served.tcp_endpoint()}) {
        auto response =
            request(endpoint, "POST", "/echo/a%20b:verb?since=4&x=%26", "the body", options);
        ASSERT_TRUE(response) << response.error().message;
        auto shown = json_from(*response);
        ASSERT_TRUE(shown) << shown.error().message;
        EXPECT_EQ(get_text(*shown, "method"), "POST");
        EXPECT_EQ(get_text(*shown, "path"), "/echo/a%20b:verb");
        EXPECT_EQ(get_text(*shown, "{name}"), "a b");
        EXPECT_EQ(get_text(*shown, "?since"), "4");
        EXPECT_EQ(get_text(*shown, "?x"), "&");
        EXPECT_EQ(get_text(*shown, "body"), "the body");
        EXPECT_EQ(get_text(*shown, "header"), "yes");
        bool is_unix = endpoint.starts_with("unix:");
        EXPECT_EQ(shown->at("uid").as_int64(), is_unix ? static_cast<int64_t>(::getuid()) : -1);
        EXPECT_EQ(shown->at("pid").as_int64(), is_unix ? ::getpid() : -1);
    }
}

TEST(HttpServer, RefusalsAreErrorsForTheClient) {
    Served served(echo_router());
    auto refused = request(served.unix_endpoint(), "GET", "/refuses");
    ASSERT_TRUE(refused);
    auto error = json_from(*refused);
    ASSERT_FALSE(error);
    EXPECT_EQ(error.error().reason, "AlreadyPaused");
    EXPECT_EQ(error.error().message, "it sleeps");
    EXPECT_EQ(request(served.unix_endpoint(), "GET", "/nowhere")->status, 404);
    EXPECT_EQ(request(served.unix_endpoint(), "GET", "/echo/%zz")->status, 400);
    auto wrong_method = request(served.unix_endpoint(), "DELETE", "/echo/a");
    EXPECT_EQ(wrong_method->status, 405);
    ASSERT_NE(wrong_method->headers.find("Allow"), nullptr);
    EXPECT_EQ(*wrong_method->headers.find("Allow"), "GET, HEAD, POST");
}

TEST(HttpServer, AHandlerThatThrowsIsAnsweredWithoutItsWords) {
    Served served(echo_router());
    auto response = request(served.unix_endpoint(), "GET", "/throws");
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 500);
    EXPECT_EQ(response->body.find("own words"), std::string::npos);
    EXPECT_EQ(request(served.unix_endpoint(), "GET", "/echo/a")->status, 200);
}

TEST(HttpServer, OneConnectionServesManyRequests) {
    Served served(echo_router());
    UniqueFd fd = raw_connect(served.path());
    for (int i = 0; i < 3; ++i) {
        raw_send(fd.get(), "GET /echo/n HTTP/1.1\r\nHost: x\r\n\r\n");
        std::string all;
        ASSERT_TRUE(raw_read_until(fd.get(), "}\n", all)) << all;
        EXPECT_TRUE(all.starts_with("HTTP/1.1 200 OK\r\n"));
    }
    // Two at once: the second waits in the buffer for its turn.
    raw_send(fd.get(), "GET /echo/p HTTP/1.1\r\nHost: x\r\n\r\n"
                       "GET /echo/q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    std::string all;
    raw_read_until(fd.get(), "", all);
    EXPECT_NE(all.find("/echo/p"), std::string::npos);
    EXPECT_NE(all.find("/echo/q"), std::string::npos);
    EXPECT_NE(all.find("Connection: close"), std::string::npos);
}

TEST(HttpServer, HeadHasTheLengthButNoBody) {
    Served served(echo_router());
    std::string all = raw_exchange(served.path(),
                                   "HEAD /echo/n HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_NE(all.find("Content-Length: "), std::string::npos);
    EXPECT_TRUE(all.ends_with("\r\n\r\n")) << all;
    EXPECT_EQ(all.find("Content-Length: 0\r\n"), std::string::npos);
}

TEST(HttpServer, TellsAWaitingPeerToGoOn) {
    Served served(echo_router());
    UniqueFd fd = raw_connect(served.path());
    raw_send(fd.get(), "POST /echo/n HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
                       "Expect: 100-continue\r\nConnection: close\r\n\r\n");
    std::string all;
    ASSERT_TRUE(raw_read_until(fd.get(), "HTTP/1.1 100 Continue\r\n\r\n", all)) << all;
    raw_send(fd.get(), "four");
    ASSERT_TRUE(raw_read_until(fd.get(), "\"four\"", all)) << all;
}

TEST(HttpServer, ReadsChunkedBodies) {
    Served served(echo_router());
    std::string all =
        raw_exchange(served.path(), "POST /echo/n HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                    "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n"
                                    "0\r\n\r\n");
    EXPECT_NE(all.find("\"abcde\""), std::string::npos) << all;
}

TEST(HttpServer, RefusesWhatIsTooLargeOrNoHttp) {
    ServerLimits limits;
    limits.header_bytes_max = 1024;
    limits.body_bytes_max = 100;
    Served served(echo_router(), limits);
    EXPECT_EQ(request(served.tcp_endpoint(), "POST", "/echo/n", std::string(101, 'x'))->status,
              413);
    EXPECT_EQ(request(served.unix_endpoint(), "POST", "/echo/n", std::string(100, 'x'))->status,
              200);
    CallOptions options;
    options.headers.set("X-Long", std::string(2000, 'x'));
    EXPECT_EQ(request(served.unix_endpoint(), "GET", "/echo/n", {}, options)->status, 431);
    EXPECT_TRUE(raw_exchange(served.path(), "one two three\r\n\r\n").starts_with("HTTP/1.1 400 "));
    std::string chunked = raw_exchange(
        served.path(), "POST /echo/n HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                           std::string("c8\r\n") + std::string(200, 'x') + "\r\n0\r\n\r\n");
    EXPECT_TRUE(chunked.starts_with("HTTP/1.1 413 ")) << chunked;
}

TEST(HttpServer, EndsPeersThatAreSlowOrIdle) {
    ServerLimits limits;
    limits.idle_max = std::chrono::milliseconds(150);
    limits.request_max = std::chrono::milliseconds(150);
    Served served(echo_router(), limits);
    EXPECT_EQ(raw_exchange(served.path(), ""), "");
    std::string cut = raw_exchange(served.path(), "POST /echo/n HTTP/1.1\r\nContent-Length: 9\r\n"
                                                  "\r\nfour");
    EXPECT_TRUE(cut.starts_with("HTTP/1.1 408 ")) << cut;
    // A byte now and then does not help.
    UniqueFd fd = raw_connect(served.path());
    std::string all;
    bool closed = eventually([&] {
        raw_send(fd.get(), "x");
        return !raw_read_until(fd.get(), "HTTP/1.1 408", all, 10) ? all.size() > 0 : true;
    });
    EXPECT_TRUE(closed);
    EXPECT_TRUE(eventually([&] { return served.connections() == 0; }));
}

TEST(HttpServer, TurnsConnectionsAwayOverTheLimit) {
    ServerLimits limits;
    limits.connections_max = 2;
    Served served(echo_router(), limits);
    UniqueFd first = raw_connect(served.path());
    UniqueFd second = raw_connect(served.path());
    ASSERT_TRUE(eventually([&] { return served.connections() == 2; }));
    std::string all = raw_exchange(served.path(), "");
    EXPECT_TRUE(all.starts_with("HTTP/1.1 503 ")) << all;
    first.reset();
    ASSERT_TRUE(eventually([&] { return served.connections() == 1; }));
    EXPECT_EQ(request(served.unix_endpoint(), "GET", "/echo/n")->status, 200);
}

TEST(HttpServer, ReplacesTheSocketOfTheDeadOnly) {
    std::string path;
    {
        Served served(echo_router());
        path = served.path();
        asio::io_context context;
        Server second(context, Router());
        auto refused = second.listen_unix(path, 0600);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::kAlreadyExists);
        EXPECT_EQ(request(served.unix_endpoint(), "GET", "/echo/n")->status, 200);
        struct stat file{};
        ASSERT_EQ(::stat(path.c_str(), &file), 0);
        EXPECT_EQ(file.st_mode & 0777U, 0600U);
        served.stop();
        EXPECT_FALSE(std::filesystem::exists(path));
    }
    // The file of a listener that died without removing it.
    std::string pattern = (std::filesystem::temp_directory_path() / "berth-dead-XXXXXX").string();
    std::string stale = std::string(::mkdtemp(pattern.data())) + "/s.sock";
    ASSERT_TRUE(listen_packets(stale, 0600));
    ASSERT_TRUE(std::filesystem::exists(stale));
    asio::io_context context;
    Server server(context, Router());
    EXPECT_TRUE(server.listen_unix(stale, 0600));
    server.stop();
    std::filesystem::remove_all(std::filesystem::path(stale).parent_path());
}

TEST(HttpServer, StopsWhileHandlersWait) {
    Router router;
    std::atomic<int> waiting{0};
    std::atomic<bool> closed_seen{false};
    router.add("GET", "/waits", [&](Request request) -> asio::awaitable<Response> {
        asio::steady_timer never(co_await asio::this_coro::executor,
                                 asio::steady_timer::time_point::max());
        request.peer->on_closed([&] { closed_seen = true; });
        ++waiting;
        co_await never.async_wait(asio::use_awaitable);
        co_return Response{};
    });
    Served served(std::move(router));
    UniqueFd fd = raw_connect(served.path());
    raw_send(fd.get(), "GET /waits HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(eventually([&] { return waiting == 1; }));
    served.stop();
    EXPECT_TRUE(closed_seen);
    std::string all;
    raw_read_until(fd.get(), "", all);
    EXPECT_EQ(all, "");
}

TEST(HttpServer, ConnectionsAreNotInheritedByChildren) {
    Router router;
    router.add("GET", "/flags", [](Request) -> asio::awaitable<Response> {
        // Every socket of this process must close at exec.
        std::string open;
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code ignored;
            std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
            int fd = std::stoi(entry.path().filename().string());
            if (target.starts_with("socket:") && fd > 2 && (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0)
                open += entry.path().filename().string() + " ";
        }
        co_return text_response(open);
    });
    Served served(std::move(router));
    for (const std::string& endpoint : {served.unix_endpoint(), served.tcp_endpoint()}) {
        auto response = request(endpoint, "GET", "/flags");
        ASSERT_TRUE(response);
        EXPECT_EQ(response->body, "");
    }
}

TEST(HttpClient, TellsWhyThereIsNoAnswer) {
    auto nobody = request("unix:/nonexistent/berth.sock", "GET", "/");
    ASSERT_FALSE(nobody);
    EXPECT_EQ(nobody.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(request("ftp://x", "GET", "/").error().code, ErrorCode::kInvalidArgument);
    Router router;
    router.add("GET", "/slow", [](Request) -> asio::awaitable<Response> {
        asio::steady_timer timer(co_await asio::this_coro::executor, std::chrono::seconds(60));
        co_await timer.async_wait(asio::use_awaitable);
        co_return Response{};
    });
    Served served(std::move(router));
    CallOptions options;
    options.timeout = std::chrono::milliseconds(100);
    auto late = request(served.unix_endpoint(), "GET", "/slow", {}, options);
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
}

} // namespace
} // namespace berth::http
