// SPDX-License-Identifier: Apache-2.0
#include "base/packet_socket.h"

#include "base/descriptors.h"
#include "base/unix_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace berth {

namespace {

Result<UniqueFd> new_socket() {
    UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!fd)
        return fail_errno("socket");
    return fd;
}

Status wait_for(int socket, short events, Deadline deadline) {
    for (;;) {
        auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline -
                                                                 std::chrono::steady_clock::now());
        int64_t timeout = left.count() < 0 ? 0 : left.count();
        pollfd waiting{socket, events, 0};
        int ready = ::poll(&waiting, 1, static_cast<int>(timeout > INT_MAX ? INT_MAX : timeout));
        if (ready > 0)
            return {};
        if (ready < 0 && errno != EINTR)
            return fail_errno("poll");
        if (ready == 0)
            return fail(ErrorCode::kDeadlineExceeded, "no answer on the socket in time");
    }
}

// Asked while what a message brought is still held.
bool has_no_descriptor_left() {
    UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return !one && (errno == EMFILE || errno == ENFILE);
}

} // namespace

Result<bool> send_packet_nowait(int socket, std::string_view payload, const std::vector<int>& fds) {
    if (payload.size() > kPacketBytesMax || fds.size() > kPacketFdsMax)
        return fail(ErrorCode::kInternal,
                    fmt::format("a message of {} bytes and {} descriptors is over the limits",
                                payload.size(), fds.size()));
    iovec part{const_cast<char*>(payload.data()), payload.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketFdsMax)] = {};
    if (!fds.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
        std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    for (;;) {
        if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return true;
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return false;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return fail(ErrorCode::kUnavailable, "the peer has closed the connection");
        // As many descriptors of this user's wait in sockets, unread, as it may have open.
        if (errno == ETOOMANYREFS)
            return fail(too_many_descriptors("descriptors that were sent wait unread"));
        return fail_errno("sendmsg");
    }
}

Result<bool> receive_packet_nowait(int socket, Packet& packet) {
    // One buffer a thread: clearing 128 KiB for each message would cost more than the message.
    thread_local std::vector<char> buffer(kPacketBytesMax);
    packet.payload.clear();
    packet.fds.clear();
    iovec part{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketFdsMax)];
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    // A peer that closed with something of ours unread is reported before what it said last (why
    // it refused us, say), once: the second look gives its words.
    ssize_t got = 0;
    bool was_reset = false;
    do {
        was_reset = was_reset || (got < 0 && errno == ECONNRESET);
        got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !was_reset)));
    if (got < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return false;
        if (errno == ECONNRESET)
            return fail(ErrorCode::kUnavailable, "the peer has closed the connection");
        return fail_errno("recvmsg");
    }
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
            packet.fds.emplace_back(fd);
        }
    }
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        // With room left for more of them it is this process that could not take them all.
        bool no_room_here = (message.msg_flags & MSG_TRUNC) == 0 &&
                            packet.fds.size() < kPacketFdsMax && has_no_descriptor_left();
        packet.fds.clear();
        if (no_room_here)
            return fail(too_many_descriptors("the descriptors of a message could not be taken"));
        return fail(ErrorCode::kCorrupt, "a message over the size limits was cut short");
    }
    packet.payload.assign(buffer.data(), static_cast<size_t>(got));
    if (got == 0 && packet.fds.empty())
        return fail(ErrorCode::kUnavailable, "the peer has closed the connection");
    return true;
}

Status send_packet(int socket, std::string_view payload, const std::vector<int>& fds,
                   Deadline deadline) {
    for (;;) {
        BERTH_ASSIGN(bool sent, send_packet_nowait(socket, payload, fds));
        if (sent)
            return {};
        BERTH_TRY(wait_for(socket, POLLOUT, deadline));
    }
}

Result<Packet> receive_packet(int socket, Deadline deadline) {
    Packet packet;
    for (;;) {
        BERTH_ASSIGN(bool received, receive_packet_nowait(socket, packet));
        if (received)
            return packet;
        BERTH_TRY(wait_for(socket, POLLIN, deadline));
    }
}

Result<UniqueFd> listen_packets(const std::string& path, int mode) {
    BERTH_ASSIGN(sockaddr_un address, unix_address(path));
    if (auto other = connect_packets(path))
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("{}: another process is listening there", path));
    BERTH_TRY(remove_socket(path));
    BERTH_ASSIGN(UniqueFd fd, new_socket());
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        return fail_errno(fmt::format("binding {}", path));
    if (::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0 || ::listen(fd.get(), 256) != 0)
        return fail_errno(fmt::format("listening at {}", path));
    return fd;
}

Result<UniqueFd> connect_packets(const std::string& path) {
    BERTH_ASSIGN(sockaddr_un address, unix_address(path));
    BERTH_ASSIGN(UniqueFd fd, new_socket());
    int rc = 0;
    do {
        rc = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0)
        return fail_errno(fmt::format("connecting to {}", path));
    return fd;
}

Result<UniqueFd> accept_packets(int listener) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd)
        return fail_errno("accept");
    return fd;
}

Result<std::pair<UniqueFd, UniqueFd>> packet_pair() {
    int both[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both) != 0)
        return fail_errno("socketpair");
    return std::pair(UniqueFd(both[0]), UniqueFd(both[1]));
}

bool PeerCredentials::has_group(uint32_t group) const {
    return gid == group || (groups && std::ranges::find(*groups, group) != groups->end());
}

Result<PeerCredentials> peer_credentials(int socket) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
        return fail_errno("reading the peer's credentials");
    PeerCredentials peer{credentials.pid, credentials.uid, credentials.gid, {}};
    // Most processes are in a few groups; the kernel says how many there are where that is too few.
    std::vector<uint32_t> groups(32);
    for (int attempt = 0; attempt < 2; ++attempt) {
        auto bytes = static_cast<socklen_t>(groups.size() * sizeof(uint32_t));
        bool told = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0;
        if (!told && errno != ERANGE)
            break;
        groups.resize(bytes / sizeof(uint32_t));
        if (told) {
            peer.groups = std::move(groups);
            break;
        }
    }
    return peer;
}

} // namespace berth
