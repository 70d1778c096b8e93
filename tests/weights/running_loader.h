// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "engine_shim/protocol/messages.h"
#include "tests/weights/test_checkpoint.h"

#include <poll.h>
#include <signal.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace berth::testing {

inline std::string loader_path() {
    const char* folder = std::getenv("BERTH_BIN_DIR");
    return std::string(folder != nullptr ? folder : ".") + "/berth-loader";
}

inline Deadline soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

// A loader that runs, and berthd's end of its socket.
class RunningLoader {
  public:
    // `arguments` behind the program's name; `fds` are what it inherits besides, as in
    // SpawnOptions.
    explicit RunningLoader(std::vector<std::string> arguments,
                           std::vector<std::pair<int, int>> fds = {}) {
        auto pair = packet_pair();
        EXPECT_TRUE(pair);
        socket_ = std::move(pair->first);
        SpawnOptions options;
        options.command = {loader_path(), "--control-fd", "3"};
        options.command.insert(options.command.end(), arguments.begin(), arguments.end());
        options.log_path = folder_.file("log");
        options.inherit_fds = std::move(fds);
        options.inherit_fds.emplace_back(pair->second.get(), 3);
        auto spawned = Process::spawn(options);
        EXPECT_TRUE(spawned) << spawned.error().message;
        process_ = std::move(*spawned);
    }
    // Of a checkpoint onto host-0.
    explicit RunningLoader(const std::string& model, std::vector<std::string> more = {})
        : RunningLoader(with_model(model, std::move(more))) {}
    ~RunningLoader() {
        if (process_ && !ended_)
            (void)process_.signal(SIGKILL);
    }
    RunningLoader(const RunningLoader&) = delete;
    RunningLoader& operator=(const RunningLoader&) = delete;

    template <typename Message>
    Message expect() {
        auto received = protocol::receive(socket_.get(), soon());
        EXPECT_TRUE(received) << received.error().message << "\n" << log();
        if (!received || !std::holds_alternative<Message>(received->message)) {
            ADD_FAILURE() << "another message; " << log();
            return {};
        }
        fds_ = std::move(received->fds);
        return std::get<Message>(received->message);
    }
    // The message after all progress.
    Result<protocol::Message> after_progress() {
        for (;;) {
            BERTH_ASSIGN(protocol::Received received, protocol::receive(socket_.get(), soon()));
            if (std::holds_alternative<protocol::Progress>(received.message)) {
                ++progress_count_;
                continue;
            }
            fds_ = std::move(received.fds);
            return received.message;
        }
    }
    void send(const protocol::Message& message) {
        Status sent = protocol::send(socket_.get(), message, {}, soon());
        EXPECT_TRUE(sent) << sent.error().message;
    }
    void hang_up() { socket_.reset(); }
    void kill() { EXPECT_TRUE(process_.signal(SIGKILL)); }
    // The wait status, once it has ended.
    int wait() {
        pollfd watched = {process_.pidfd(), POLLIN, 0};
        EXPECT_EQ(::poll(&watched, 1, 20'000), 1) << "the loader did not end";
        ended_ = true;
        return process_.try_wait().value_or(-1);
    }
    std::vector<UniqueFd>& fds() { return fds_; }
    int progress_count() const { return progress_count_; }
    int pid() const { return process_.id().pid; }
    std::string log() const { return read_bytes(folder_.file("log")); }

  private:
    static std::vector<std::string> with_model(const std::string& model,
                                               std::vector<std::string> more) {
        more.insert(more.begin(), {"--model", model, "--device", "host-0", "--environment",
                                   R"({"device_kind":"host"})"});
        return more;
    }

    TempFolder folder_;
    UniqueFd socket_;
    Process process_;
    std::vector<UniqueFd> fds_;
    int progress_count_ = 0;
    bool ended_ = false;
};

} // namespace berth::testing
