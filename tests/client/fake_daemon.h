// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/packet_socket.h"
#include "cache/memory/device.h"
#include "engine_shim/protocol/gate_page.h"
#include "engine_shim/protocol/messages.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

// berthd's side of the wire, played by a test step by step: what it sends are real sealed memfds.
namespace berth::testing {

// Aborts the test program with the error's words: for set-up that must work.
template <typename T>
T must(Result<T> result) {
    if (!result) {
        ADD_FAILURE() << result.error().message;
        throw std::runtime_error(result.error().message);
    }
    return std::move(*result);
}
inline void must(Status status) {
    if (!status) {
        ADD_FAILURE() << status.error().message;
        throw std::runtime_error(status.error().message);
    }
}

// A weight set of two tensors on host-0: "a.weight" (F32, 2x3: 0..5) and "b.bias" (BF16, 4), and
// "tied.weight", an alias of the first.
struct SealedSet {
    std::string fingerprint;
    UniqueFd manifest;
    Segment segment;
};
SealedSet make_set(Device& device, const std::string& fingerprint = std::string(64, 'a'));

class FakeDaemon {
  public:
    explicit FakeDaemon(const std::string& path);

    const std::string& path() const { return path_; }
    // Takes one connection and its Hello; answers nothing.
    protocol::Hello accept_hello();
    // Hello and Welcome in one; the gate goes along.
    protocol::Hello accept_and_welcome(protocol::Welcome welcome = {});
    void refuse(uint64_t id, const Error& error);
    void send(const protocol::Message& message, const std::vector<int>& fds = {});
    // The next message of that type; skips reports.
    template <typename M>
    M expect() {
        for (;;) {
            auto received = must(protocol::receive(connection_.get(), soon()));
            if (auto* found = std::get_if<M>(&received.message))
                return std::move(*found);
            if (!std::holds_alternative<protocol::Report>(received.message)) {
                ADD_FAILURE() << "unexpected: " << encode(received.message);
                throw std::runtime_error("unexpected message");
            }
        }
    }
    void send_set(uint64_t id, const SealedSet& set);
    void hang_up() { connection_.reset(); }
    // Also stops listening, as a dead berthd does.
    void die();
    void listen();
    GateFds& gate() { return gate_; }
    void new_gate() { gate_ = must(create_gate_page()); }

    static Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

  private:
    std::string path_;
    UniqueFd listener_;
    UniqueFd connection_;
    GateFds gate_;
};

// A folder that goes away with the test.
class ScratchFolder {
  public:
    ScratchFolder();
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    ~ScratchFolder();
    std::string path(const std::string& name) const { return folder_ + "/" + name; }

  private:
    std::string folder_;
};

} // namespace berth::testing
