// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/main/keeper_loop.h"

#include "base/log.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace berth {

namespace {

// A newcomer over this displaces the peer that has been silent longest, so that idle connections
// cannot shut berthd out.
constexpr size_t kPeersMax = 64;
constexpr int kListenerRestMs = 100;

std::vector<int> numbers(const std::vector<UniqueFd>& fds) {
    std::vector<int> out;
    out.reserve(fds.size());
    for (const UniqueFd& fd : fds)
        out.push_back(fd.get());
    return out;
}

} // namespace

Result<int> KeeperLoop::run() {
    for (;;) {
        std::vector<pollfd> waiting;
        waiting.push_back({signals_.get(), POLLIN, 0});
        // poll skips negative descriptors.
        waiting.push_back({listener_rests_ ? -1 : listener_.get(), POLLIN, 0});
        for (const Peer& peer : peers_) {
            auto events = static_cast<short>(peer.owes_reply ? POLLOUT : POLLIN);
            waiting.push_back({peer.socket.get(), events, 0});
        }
        int ready = ::poll(waiting.data(), waiting.size(), listener_rests_ ? kListenerRestMs : -1);
        if (ready < 0 && errno != EINTR)
            return fail_errno("poll");
        listener_rests_ = false;
        if (ready <= 0)
            continue;
        if (waiting[0].revents != 0) {
            signalfd_siginfo info{};
            if (::read(signals_.get(), &info, sizeof info) == sizeof info)
                return static_cast<int>(info.ssi_signo);
        }
        ++turn_;
        for (size_t i = 0; i < peers_.size(); ++i)
            if (waiting[i + 2].revents != 0 && !serve(peers_[i]))
                peers_[i].socket.reset();
        std::erase_if(peers_, [](const Peer& peer) { return !peer.socket; });
        if (waiting[1].revents != 0)
            admit();
    }
}

void KeeperLoop::admit() {
    auto socket = accept_packets(listener_.get());
    if (!socket) {
        // Out of descriptors, most likely: without a rest poll would return at once, for ever.
        log::warn("ignoring a peer: {}", socket.error().message);
        listener_rests_ = true;
        return;
    }
    auto who = peer_credentials(socket->get());
    if (!who || (who->uid != ::geteuid() && who->uid != 0)) {
        log::warn("refused a peer pid={} uid={}: only this user and root may come",
                  who ? who->pid : 0, who ? who->uid : 0);
        return;
    }
    if (peers_.size() >= kPeersMax) {
        auto idle =
            std::min_element(peers_.begin(), peers_.end(), [](const Peer& a, const Peer& b) {
                return a.last_turn < b.last_turn;
            });
        log::warn("{} peers are connected; dropping the one that is silent longest, pid={}",
                  peers_.size(), idle->pid);
        peers_.erase(idle);
    }
    Peer peer;
    peer.socket = std::move(*socket);
    peer.pid = who->pid;
    peer.last_turn = turn_;
    peers_.push_back(std::move(peer));
}

bool KeeperLoop::serve(Peer& peer) {
    peer.last_turn = turn_;
    if (peer.owes_reply)
        return send_reply(peer);
    Packet request;
    auto received = receive_packet_nowait(peer.socket.get(), request);
    if (received && !*received)
        return true;
    if (received) {
        peer.reply = store_.handle(std::move(request));
        return send_reply(peer);
    }
    if (received.error().code != ErrorCode::kCorrupt)
        return false;
    log::warn("refused a message of pid={}: {}", peer.pid, received.error().message);
    peer.reply = KeeperStore::refuse(received.error());
    return send_reply(peer);
}

bool KeeperLoop::send_reply(Peer& peer) {
    auto sent = send_packet_nowait(peer.socket.get(), peer.reply.payload, numbers(peer.reply.fds));
    if (!sent) {
        if (sent.error().code != ErrorCode::kUnavailable)
            log::warn("dropping pid={}: {}", peer.pid, sent.error().message);
        return false;
    }
    peer.owes_reply = !*sent;
    if (*sent)
        peer.reply = Packet{};
    return true;
}

} // namespace berth
