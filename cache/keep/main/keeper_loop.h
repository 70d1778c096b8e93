// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/keep/keeper_store.h"

#include <vector>

namespace berth {

// The keeper's one thread: accepts peers of the same user or root, answers one request at a time,
// and ends on SIGTERM or SIGINT. No peer can hold it up: it never waits on a socket, and reads no
// further request from a peer that has not taken its last reply.
class KeeperLoop {
  public:
    // `signals` is a signalfd.
    KeeperLoop(KeeperStore& store, UniqueFd listener, UniqueFd signals)
        : store_(store), listener_(std::move(listener)), signals_(std::move(signals)) {}

    // Returns the signal that ended it.
    Result<int> run();

  private:
    struct Peer {
        UniqueFd socket;
        int pid = 0;
        uint64_t last_turn = 0;
        bool owes_reply = false; // `reply` did not fit into the socket yet
        Packet reply;
    };

    void admit();
    // false: the peer is gone or to be dropped.
    bool serve(Peer& peer);
    static bool send_reply(Peer& peer);

    KeeperStore& store_;
    UniqueFd listener_;
    UniqueFd signals_;
    std::vector<Peer> peers_;
    uint64_t turn_ = 0;
    bool listener_rests_ = false;
};

} // namespace berth
