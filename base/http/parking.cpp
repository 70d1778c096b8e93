// SPDX-License-Identifier: Apache-2.0
#include "base/http/parking.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace berth::http {

namespace {

constexpr size_t kBatch = 250; // the kernel passes 253 descriptors with a message
constexpr int kQueueBytes = 1 << 20;

struct Record {
    uint32_t mark = 0;
    uint32_t slot = 0;
    uint64_t serial = 0;
};
static_assert(sizeof(Record) == 16);
constexpr uint32_t kMark = 0x4b525042; // "BPRK"

struct Message {
    std::vector<Parking::Found> found;
    bool is_there = false;
};

// The next message as far as the queue is read or looked through; false: there is none.
Result<Message> receive(int socket, int flags) {
    std::array<Record, kBatch> records = {};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 256)> control = {};
    iovec part{records.data(), sizeof records};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    ssize_t got = 0;
    do
        got = ::recvmsg(socket, &header, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    Message message;
    if (got == 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)))
        return message;
    if (got < 0)
        return fail_errno("reading parked connections");
    message.is_there = true;
    std::vector<UniqueFd> fds;
    for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
        if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(one) + i * sizeof(int), sizeof fd);
            fds.emplace_back(fd);
        }
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0 && (flags & MSG_PEEK) != 0)
        return fail(ErrorCode::kResourceExhausted,
                    fmt::format("this process may not open as many descriptors as connections are "
                                "parked; {} of a message came: raise its limit (RLIMIT_NOFILE)",
                                fds.size()));
    if (static_cast<size_t>(got) != fds.size() * sizeof(Record))
        return message; // not an entry of ours: its descriptors are closed
    for (size_t i = 0; i < fds.size(); ++i) {
        if (records[i].mark == kMark)
            message.found.push_back({{records[i].slot, records[i].serial}, std::move(fds[i])});
    }
    return message;
}

Status look_from(int socket, int offset) {
    if (::setsockopt(socket, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) != 0)
        return fail_errno("looking through parked connections (SO_PEEK_OFF)");
    return {};
}

} // namespace

Parking::Parking(UniqueFd in, UniqueFd out) : in_(std::move(in)), out_(std::move(out)) {
    (void)::setsockopt(in_.get(), SOL_SOCKET, SO_SNDBUF, &kQueueBytes, sizeof kQueueBytes);
}

Status Parking::send(std::span<const Live> live) {
    std::array<Record, kBatch> records = {};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kBatch)> control = {};
    msghdr header = {};
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * live.size());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * live.size());
    for (size_t i = 0; i < live.size(); ++i) {
        records[i] = {kMark, live[i].name.slot, live[i].name.serial};
        std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &live[i].fd, sizeof(int));
    }
    iovec part{records.data(), sizeof(Record) * live.size()};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    ssize_t sent = 0;
    do
        sent = ::sendmsg(in_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return fail(
            Error{ErrorCode::kResourceExhausted,
                  fmt::format("parking {} connections: {}", live.size(), std::strerror(errno)),
                  {},
                  errno});
    ++messages_;
    return {};
}

Status Parking::park(const Live& connection) {
    return send(std::span(&connection, 1));
}

Result<std::vector<Parking::Found>> Parking::look() {
    BERTH_TRY(look_from(out_.get(), 0));
    std::vector<Found> all;
    messages_ = 0;
    for (;;) {
        auto message = receive(out_.get(), MSG_PEEK);
        if (!message || !message->is_there) {
            (void)look_from(out_.get(), -1);
            if (!message)
                return fail(message.error());
            return all;
        }
        ++messages_;
        std::move(message->found.begin(), message->found.end(), std::back_inserter(all));
    }
}

Status Parking::replace(std::span<const Live> live) {
    const size_t old = messages_;
    for (size_t at = 0; at < live.size(); at += kBatch)
        BERTH_TRY(send(live.subspan(at, std::min(kBatch, live.size() - at))));
    for (size_t i = 0; i < old; ++i) {
        BERTH_ASSIGN(const Message message, receive(out_.get(), 0));
        if (!message.is_there)
            break;
        --messages_;
    }
    return {};
}

Result<size_t> Parking::clear() {
    BERTH_TRY(look_from(out_.get(), -1)); // of a process that ended while it looked
    messages_ = 0;
    for (size_t ended = 0;;) {
        BERTH_ASSIGN(const Message message, receive(out_.get(), 0));
        if (!message.is_there)
            return ended;
        for (const Found& one : message.found)
            (void)::shutdown(one.fd.get(), SHUT_RDWR);
        ended += message.found.size();
    }
}

} // namespace berth::http
