// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/bare_http.h"

#include "base/unix_address.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace berth::cli::bench {

namespace {

constexpr int kEventsMax = 64;
constexpr size_t kRequestMax = 16 << 10;

bool watch(int epoll, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

// A generator asks one thing at a time: what is there is one request.
bool answer(int fd, const std::string& with) {
    char request[kRequestMax];
    if (::recv(fd, request, sizeof request, 0) <= 0)
        return false;
    return ::send(fd, with.data(), with.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(with.size());
}

} // namespace

Result<std::unique_ptr<BareHttp>> BareHttp::start(const std::string& path, size_t body_bytes) {
    BERTH_ASSIGN(sockaddr_un address, unix_address(path));
    UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!listener ||
        ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener.get(), kEventsMax) != 0)
        return fail_errno(fmt::format("listening at {}", path));
    UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
    if (!stop)
        return fail_errno("eventfd");
    return std::unique_ptr<BareHttp>(
        new BareHttp(path, std::move(listener), std::move(stop), body_bytes));
}

BareHttp::BareHttp(std::string path, UniqueFd listener, UniqueFd stop, size_t body_bytes)
    : path_(std::move(path)), listener_(std::move(listener)), stop_(std::move(stop)),
      answer_(fmt::format("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                          "Content-Length: {}\r\n\r\n{}",
                          body_bytes, std::string(body_bytes, ' '))),
      thread_([this] { run(); }) {}

BareHttp::~BareHttp() {
    uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    thread_.join();
    ::unlink(path_.c_str());
}

void BareHttp::run() {
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll || !watch(epoll.get(), listener_.get()) || !watch(epoll.get(), stop_.get()))
        return;
    std::map<int, UniqueFd> peers;
    epoll_event events[kEventsMax];
    for (;;) {
        const int ready = ::epoll_wait(epoll.get(), events, kEventsMax, -1);
        for (int i = 0; i < ready; ++i) {
            const int fd = events[i].data.fd;
            if (fd == stop_.get())
                return;
            if (fd != listener_.get()) {
                if (!answer(fd, answer_))
                    peers.erase(fd);
                continue;
            }
            UniqueFd peer(::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC));
            if (peer && watch(epoll.get(), peer.get())) {
                const int number = peer.get();
                peers.insert_or_assign(number, std::move(peer));
            }
        }
    }
}

} // namespace berth::cli::bench
