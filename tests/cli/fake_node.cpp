// SPDX-License-Identifier: Apache-2.0
#include "fake_node.h"

#include "base/http/server.h"
#include "base/unique_fd.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace berth::test {

namespace asio = boost::asio;

struct FakeNode::State {
    std::string folder;
    http::Router router;
    asio::io_context io{1};
    std::unique_ptr<http::Server> server;
    std::thread thread;
    mutable std::mutex mutex; // guards seen
    std::vector<Seen> seen;
};

FakeNode::FakeNode() : state_(std::make_unique<State>()) {
    std::string folder = (std::filesystem::temp_directory_path() / "berth-cli-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr)
        throw std::runtime_error("mkdtemp");
    state_->folder = folder;
}

FakeNode::~FakeNode() {
    if (state_->thread.joinable()) {
        asio::post(state_->io, [this] { state_->server->stop(); });
        state_->thread.join();
    }
    std::filesystem::remove_all(state_->folder);
}

void FakeNode::on(const std::string& method, const std::string& path, Answer answer) {
    auto shared = std::make_shared<Answer>(std::move(answer));
    auto handler = [](State* state, std::shared_ptr<Answer> answer_with,
                      http::Request request) -> asio::awaitable<http::Response> {
        {
            std::lock_guard lock(state->mutex);
            state->seen.push_back({request.method, request.target, request.body});
        }
        co_return (*answer_with)(request);
    };
    state_->router.add(method, path,
                       [state = state_.get(), shared, handler](http::Request request) {
                           return handler(state, shared, std::move(request));
                       });
}

void FakeNode::on(const std::string& method, const std::string& path, const std::string& json_body,
                  int status) {
    on(method, path, [json_body, status](const http::Request&) {
        return http::text_response(json_body, status, "application/json");
    });
}

void FakeNode::start() {
    state_->server = std::make_unique<http::Server>(state_->io, std::move(state_->router));
    auto listening = state_->server->listen_unix(socket(), 0600);
    ASSERT_TRUE(listening) << listening.error().message;
    state_->thread = std::thread([this] { state_->io.run(); });
}

std::string FakeNode::socket() const {
    return state_->folder + "/admin.sock";
}
const std::string& FakeNode::folder() const {
    return state_->folder;
}
std::vector<FakeNode::Seen> FakeNode::seen() const {
    std::lock_guard lock(state_->mutex);
    return state_->seen;
}

namespace {

std::string program() {
    const char* folder = std::getenv("BERTH_BIN_DIR");
    return folder == nullptr ? "berth" : std::string(folder) + "/berth";
}

std::string read_all(int fd) {
    std::string text;
    char chunk[4096];
    for (;;) {
        ssize_t got = ::read(fd, chunk, sizeof chunk);
        if (got <= 0) // a terminal whose other end closed gives EIO
            return text;
        text.append(chunk, static_cast<size_t>(got));
    }
}

// Reads all of `out`, then waits for the child.
Ran finish(int child, int out) {
    Ran ran;
    ran.out = read_all(out);
    int status = 0;
    ::waitpid(child, &status, 0);
    ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ran;
}

// A child that runs a shell command with these three descriptors.
int start_shell(const std::string& command, int in, int out, int err) {
    int child = ::fork();
    if (child != 0)
        return child;
    ::dup2(in, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
}

std::string command_of(const std::string& admin, const std::string& arguments,
                       const std::string& environment) {
    return fmt::format("exec env {} BERTH_ADMIN='{}' TERM=xterm '{}' {}", environment, admin,
                       program(), arguments);
}

} // namespace

Ran run_berth(const std::string& admin, const std::string& arguments,
              const std::string& standard_input) {
    int in[2];
    int out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    std::string errors = (std::filesystem::temp_directory_path() / "berth-cli-err-XXXXXX").string();
    UniqueFd err(::mkstemp(errors.data()));
    int child = start_shell(command_of(admin, arguments, ""), in[0], out[1], err.get());
    ::close(in[0]);
    ::close(out[1]);
    EXPECT_EQ(::write(in[1], standard_input.data(), standard_input.size()),
              static_cast<ssize_t>(standard_input.size()));
    ::close(in[1]);
    Ran ran = finish(child, out[0]);
    ::close(out[0]);
    ::lseek(err.get(), 0, SEEK_SET);
    ran.err = read_all(err.get());
    std::filesystem::remove(errors);
    return ran;
}

Ran run_on_terminal(const std::string& admin, const std::string& arguments,
                    const std::string& environment) {
    int ours = -1;
    int theirs = -1;
    EXPECT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
    UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::fcntl(ours, F_SETFD, FD_CLOEXEC);
    int child = start_shell(command_of(admin, arguments, environment), nothing.get(), nothing.get(),
                            theirs);
    ::close(theirs);
    Ran ran = finish(child, ours);
    ::close(ours);
    ran.err = std::move(ran.out);
    ran.out.clear();
    return ran;
}

} // namespace berth::test
