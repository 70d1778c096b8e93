// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/packet_socket.h"
#include "base/process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <poll.h>
#include <string>
#include <utility>
#include <vector>

namespace berth::test {

// A memory_child process and the socket to it. What still lives at the end is killed.
struct Child {
    Process process;
    UniqueFd socket;

    static Child start(std::vector<std::string> arguments) {
        auto pair = packet_pair();
        EXPECT_TRUE(pair.has_value());
        SpawnOptions options;
        options.command = {program_directory() + "/memory_child"};
        for (std::string& argument : arguments)
            options.command.push_back(std::move(argument));
        options.inherit_fds = {{pair->second.get(), 3}};
        auto spawned = Process::spawn(options);
        EXPECT_TRUE(spawned.has_value()) << (spawned ? "" : spawned.error().message);
        return Child{spawned ? std::move(*spawned) : Process(), std::move(pair->first)};
    }

    void send(const std::string& text, const std::vector<int>& fds) const {
        auto sent = send_packet(socket.get(), text, fds, soon());
        EXPECT_TRUE(sent.has_value()) << (sent ? "" : sent.error().message);
    }

    // What the child says next; a packet with the error's words when it says nothing.
    Packet receive() const {
        auto packet = receive_packet(socket.get(), soon());
        if (!packet)
            return Packet{"no word: " + packet.error().message, {}};
        return std::move(*packet);
    }

    // The wait status; fails the test when it lives on.
    int wait() {
        pollfd waiting{process.pidfd(), POLLIN, 0};
        EXPECT_EQ(::poll(&waiting, 1, 30'000), 1) << "the child did not end";
        return process.try_wait().value_or(0);
    }

    int kill() {
        EXPECT_TRUE(process.signal(SIGKILL).has_value());
        return wait();
    }

    Child(Process started, UniqueFd end) : process(std::move(started)), socket(std::move(end)) {}
    Child(Child&&) = default;
    Child& operator=(Child&&) = default;
    ~Child() {
        if (process && !process.try_wait())
            (void)process.signal(SIGKILL);
    }

  private:
    static Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }
};

} // namespace berth::test
