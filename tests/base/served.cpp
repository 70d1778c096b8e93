// SPDX-License-Identifier: Apache-2.0
#include "tests/base/served.h"

#include "base/unique_fd.h"

#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace berth::http {

Served::Served(Router router, ServerLimits limits) {
    std::string pattern = (std::filesystem::temp_directory_path() / "berth-http-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/admin.sock";
    server_ = std::make_unique<Server>(context_, std::move(router), limits);
    auto listening = server_->listen_unix(path_, 0600);
    EXPECT_TRUE(listening) << listening.error().message;
    auto port = server_->listen_tcp("127.0.0.1", 0);
    EXPECT_TRUE(port) << port.error().message;
    port_ = port.value_or(0);
    thread_ = std::thread([this] { context_.run(); });
}

Served::~Served() {
    stop();
    std::filesystem::remove_all(folder_);
}

void Served::on_io_thread(std::function<void()> work) {
    std::promise<void> done;
    boost::asio::post(context_, [&] {
        work();
        done.set_value();
    });
    done.get_future().wait();
}

size_t Served::connections() {
    size_t count = 0;
    on_io_thread([&] { count = server_->connections(); });
    return count;
}

// run() returns only once no coroutine waits for anything: joining shows that all have ended.
void Served::stop() {
    if (!thread_.joinable())
        return;
    boost::asio::post(context_, [this] { server_->stop(); });
    thread_.join();
    EXPECT_EQ(server_->connections(), 0U);
}

UniqueFd raw_connect(const std::string& path) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
}

void raw_send(int fd, const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
        ssize_t put = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (put <= 0)
            return; // the server has had enough of it
        sent += static_cast<size_t>(put);
    }
}

bool raw_read_until(int fd, const std::string& text, std::string& all, int milliseconds_max) {
    auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds_max);
    while (text.empty() || all.find(text) == std::string::npos) {
        auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            until - std::chrono::steady_clock::now());
        pollfd waiting{fd, POLLIN, 0};
        if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) != 1)
            return false;
        char chunk[4096];
        ssize_t got = ::recv(fd, chunk, sizeof chunk, 0);
        if (got <= 0)
            return false;
        all.append(chunk, static_cast<size_t>(got));
    }
    return true;
}

std::string raw_exchange(const std::string& path, const std::string& bytes, int milliseconds_max) {
    UniqueFd fd = raw_connect(path);
    raw_send(fd.get(), bytes);
    std::string all;
    raw_read_until(fd.get(), "", all, milliseconds_max);
    return all;
}

bool eventually(const std::function<bool()>& condition, int milliseconds_max) {
    auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds_max);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until)
            return false;
        ::poll(nullptr, 0, 5);
    }
    return true;
}

} // namespace berth::http
