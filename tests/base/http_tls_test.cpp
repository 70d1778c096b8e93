// SPDX-License-Identifier: Apache-2.0
// TLS from our client to our server, and what both say to those who get it wrong.
#include "base/json.h"
#include "tests/base/certificate.h"
#include "tests/base/served.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>

namespace berth::http {
namespace {

namespace asio = boost::asio;

class HttpTls : public testing::Test {
  protected:
    HttpTls() : files_(make_folder()) {
        Router router;
        router.add("POST", "/echo", [](Request request) -> asio::awaitable<Response> {
            Response response = text_response(request.body);
            response.headers.set("X-From", request.address);
            co_return response;
        });
        router.add_stream("GET", "/lines", [](Request, StreamPtr stream) -> asio::awaitable<void> {
            Headers headers;
            if (!co_await stream->start(200, "application/x-ndjson", headers))
                co_return;
            for (int i = 0; i < 3; ++i) {
                std::string line = fmt::format("line {}\n", i);
                (void)co_await stream->write(std::move(line));
            }
        });
        router.add("GET", "/waits", [this](Request request) -> asio::awaitable<Response> {
            auto timer = std::make_shared<asio::steady_timer>(
                co_await asio::this_coro::executor, asio::steady_timer::time_point::max());
            request.peer->on_closed([this, timer] {
                left_ = true;
                timer->cancel();
            });
            waiting_ = true;
            co_await timer->async_wait(asio::use_awaitable);
            co_return Response{};
        });
        served_ = std::make_unique<Served>(std::move(router));
        served_->on_io_thread([this] {
            TcpOptions options;
            options.tls = TlsFiles{files_.certificate_file, files_.key_file};
            auto port = served_->server().listen_tcp("127.0.0.1", 0, options);
            EXPECT_TRUE(port) << port.error().message;
            port_ = port.value_or(0);
        });
    }
    ~HttpTls() override { std::filesystem::remove_all(folder_); }
    HttpTls(const HttpTls&) = delete;
    HttpTls& operator=(const HttpTls&) = delete;

    std::string endpoint() const { return fmt::format("https://127.0.0.1:{}", port_); }
    CallOptions trusting() const {
        CallOptions options;
        options.ca_file = files_.certificate_file;
        return options;
    }

    std::string folder_;
    Certificate files_;
    std::atomic<bool> waiting_{false};
    std::atomic<bool> left_{false};
    std::unique_ptr<Served> served_;
    uint16_t port_ = 0;

  private:
    std::string make_folder() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "berth-tls-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
        return folder_;
    }
};

TEST_F(HttpTls, CarriesRequestsAnswersAndStreamsOfAnySize) {
    for (size_t size : {size_t{0}, size_t{5}, size_t{100'000}, size_t{5'000'000}}) {
        std::string body(size, 'x');
        auto response = request(endpoint(), "POST", "/echo", body, trusting());
        ASSERT_TRUE(response) << response.error().message;
        EXPECT_EQ(response->status, 200);
        EXPECT_TRUE(response->body == body) << size;
        ASSERT_NE(response->headers.find("X-From"), nullptr);
        EXPECT_TRUE(response->headers.find("X-From")->starts_with("127.0.0.1:"));
    }
    std::vector<std::string> lines;
    auto streamed = request_lines(
        endpoint(), "GET", "/lines", {},
        [&](std::string_view line) {
            lines.emplace_back(line);
            return true;
        },
        trusting());
    ASSERT_TRUE(streamed) << streamed.error().message;
    EXPECT_EQ(lines, (std::vector<std::string>{"line 0", "line 1", "line 2"}));
}

TEST_F(HttpTls, ACertificateThatNobodyVouchesForIsRefusedByTheClient) {
    auto refused = request(endpoint(), "POST", "/echo", "secret");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, "CertificateRefused");
    EXPECT_NE(refused.error().message.find("--ca"), std::string::npos);
    // Vouched for, but of another name.
    auto other =
        request(fmt::format("https://localhost:{}", port_), "POST", "/echo", "secret", trusting());
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().reason, "CertificateRefused") << other.error().message;
}

TEST_F(HttpTls, TheWrongKindOfClientIsToldSo) {
    auto plain = request(fmt::format("http://127.0.0.1:{}", port_), "POST", "/echo", "x");
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_EQ(plain->status, 400);
    EXPECT_EQ(error_from(*plain).reason, "TlsExpected");
    std::string tcp = served_->tcp_endpoint();
    auto secret = request("https" + tcp.substr(4), "POST", "/echo", "x", trusting());
    ASSERT_FALSE(secret);
    EXPECT_EQ(secret.error().reason, "TlsFailed") << secret.error().message;
}

TEST_F(HttpTls, APeerThatLeavesWhileItsAnswerIsMadeIsNoticed) {
    CallOptions options = trusting();
    options.timeout = std::chrono::milliseconds(300);
    EXPECT_FALSE(request(endpoint(), "GET", "/waits", {}, options));
    EXPECT_TRUE(waiting_);
    EXPECT_TRUE(eventually([&] { return left_.load(); }));
    EXPECT_TRUE(eventually([&] { return served_->connections() == 0; }));
}

TEST_F(HttpTls, FilesThatCannotBeUsedAreRefusedInWords) {
    auto refusal = [&](TlsFiles files) {
        Error error;
        served_->on_io_thread([&] {
            TcpOptions options;
            options.tls = std::move(files);
            auto port = served_->server().listen_tcp("127.0.0.1", 0, options);
            error = port ? Error{} : port.error();
        });
        return error.message;
    };
    EXPECT_NE(refusal({"/nowhere.pem", files_.key_file}).find("/nowhere.pem"), std::string::npos);
    EXPECT_NE(refusal({files_.key_file, files_.key_file}).find("no certificate"),
              std::string::npos);
    std::string other = folder_ + "/other";
    std::filesystem::create_directory(other);
    Certificate stranger(other);
    EXPECT_NE(refusal({files_.certificate_file, stranger.key_file}).find("key"), std::string::npos);
    ASSERT_EQ(::chmod(stranger.key_file.c_str(), 0644), 0);
    EXPECT_NE(refusal({stranger.certificate_file, stranger.key_file}).find("chmod 0600"),
              std::string::npos);
}

TEST(HttpTcp, LoopbackOnlyMeansTheAddressNotTheName) {
    Router router;
    Served served(std::move(router));
    served.on_io_thread([&] {
        TcpOptions options;
        options.loopback_only = true;
        EXPECT_TRUE(served.server().listen_tcp("localhost", 0, options));
        auto refused = served.server().listen_tcp("0.0.0.0", 0, options);
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find("loopback"), std::string::npos);
    });
}

} // namespace
} // namespace berth::http
