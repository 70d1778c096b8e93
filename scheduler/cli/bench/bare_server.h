// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/packet_socket.h"

#include <string>
#include <thread>
#include <vector>

namespace berth::cli::bench {

// The least that can hand descriptors out over a Unix socket: one thread that accepts, answers each
// peer's first message with one byte and its second with the descriptors, and reads nothing of
// what they say. What a daemon takes beyond it is its own doing.
class BareServer {
  public:
    // The descriptors stay the caller's and outlive it.
    static Result<std::unique_ptr<BareServer>> start(const std::string& path, std::vector<int> fds);
    BareServer(const BareServer&) = delete;
    BareServer& operator=(const BareServer&) = delete;
    ~BareServer(); // ends the thread

  private:
    struct Peer {
        UniqueFd socket;
        bool greeted = false;
    };
    BareServer(std::string path, UniqueFd listener, UniqueFd stop, std::vector<int> fds);
    void run();
    bool answer(Peer& peer) const;

    std::string path_;
    UniqueFd listener_;
    UniqueFd stop_;
    std::vector<int> fds_;
    std::thread thread_; // the last: it uses all above
};

} // namespace berth::cli::bench
