// SPDX-License-Identifier: Apache-2.0
#include "base/http/tcp_count.h"

#include <cerrno>
#include <cstddef>
#include <linux/sockios.h>
#include <linux/tcp.h> // the kernel's, which knows the byte counts
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace berth::http {

namespace {

// The kernel's numbers for a connection's state (net/tcp_states.h).
constexpr uint8_t kEstablished = 1;
constexpr uint8_t kSynReceived = 3;
constexpr uint8_t kTimeWait = 6;
constexpr uint8_t kCloseWait = 8;
constexpr uint8_t kLastAck = 9;
constexpr uint8_t kClosing = 11;

Result<tcp_info> info_of(int socket) {
    tcp_info info = {};
    socklen_t size = sizeof info;
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
        if (errno == EOPNOTSUPP || errno == ENOPROTOOPT)
            return fail(ErrorCode::kUnsupported, "this socket is not TCP's");
        return fail_errno("TCP_INFO");
    }
    if (size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received)
        return fail(ErrorCode::kUnsupported, "this kernel does not count a connection's bytes");
    return info;
}

Result<uint64_t> queued(int socket, unsigned long what) {
    int bytes = 0;
    if (::ioctl(socket, what, &bytes) != 0)
        return fail_errno("the bytes in a socket's queue");
    return static_cast<uint64_t>(bytes);
}

} // namespace

// An acknowledgement between two questions moves bytes from one count to the other: what is asked
// between two equal answers belongs to both.
Result<TcpCount> tcp_count(int socket) {
    for (;;) {
        BERTH_ASSIGN(const tcp_info before, info_of(socket));
        BERTH_ASSIGN(const uint64_t unsent, queued(socket, SIOCOUTQ));
        BERTH_ASSIGN(const uint64_t unread, queued(socket, SIOCINQ));
        BERTH_ASSIGN(const tcp_info after, info_of(socket));
        if (before.tcpi_bytes_acked != after.tcpi_bytes_acked ||
            before.tcpi_bytes_received != after.tcpi_bytes_received ||
            before.tcpi_state != after.tcpi_state)
            continue;
        const uint8_t state = after.tcpi_state;
        const bool has_fin = state == kCloseWait || state == kLastAck || state == kClosing ||
                             state == kTimeWait; // counted as a byte received, never as unread
        TcpCount count;
        count.given = after.tcpi_bytes_acked + unsent;
        count.taken = after.tcpi_bytes_received - unread - (has_fin ? 1 : 0);
        count.is_over = state != kEstablished && state != kSynReceived && state != kCloseWait;
        return count;
    }
}

} // namespace berth::http
