// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/bare_server.h"

#include <map>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace berth::cli::bench {

namespace {

constexpr int kEventsMax = 128;

bool watch(int epoll, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

} // namespace

Result<std::unique_ptr<BareServer>> BareServer::start(const std::string& path,
                                                      std::vector<int> fds) {
    BERTH_ASSIGN(UniqueFd listener, listen_packets(path, 0600));
    UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
    if (!stop)
        return fail_errno("eventfd");
    return std::unique_ptr<BareServer>(
        new BareServer(path, std::move(listener), std::move(stop), std::move(fds)));
}

BareServer::BareServer(std::string path, UniqueFd listener, UniqueFd stop, std::vector<int> fds)
    : path_(std::move(path)), listener_(std::move(listener)), stop_(std::move(stop)),
      fds_(std::move(fds)), thread_([this] { run(); }) {}

BareServer::~BareServer() {
    uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    thread_.join();
    ::unlink(path_.c_str());
}

bool BareServer::answer(Peer& peer) const {
    Packet packet;
    auto received = receive_packet_nowait(peer.socket.get(), packet);
    if (!received)
        return false;
    if (!*received)
        return true;
    auto sent =
        send_packet_nowait(peer.socket.get(), "+", peer.greeted ? fds_ : std::vector<int>());
    peer.greeted = true;
    return sent && *sent;
}

void BareServer::run() {
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll || !watch(epoll.get(), listener_.get()) || !watch(epoll.get(), stop_.get()))
        return;
    std::map<int, Peer> peers;
    epoll_event events[kEventsMax];
    for (;;) {
        int ready = ::epoll_wait(epoll.get(), events, kEventsMax, -1);
        for (int i = 0; i < ready; ++i) {
            int fd = events[i].data.fd;
            if (fd == stop_.get())
                return;
            if (fd == listener_.get()) {
                auto socket = accept_packets(fd);
                if (socket && watch(epoll.get(), socket->get())) {
                    int number = socket->get();
                    peers[number].socket = std::move(*socket);
                }
            } else if (auto peer = peers.find(fd); peer != peers.end() && !answer(peer->second)) {
                peers.erase(peer);
            }
        }
    }
}

} // namespace berth::cli::bench
