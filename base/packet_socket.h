// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Unix SEQPACKET sockets that carry descriptors (SCM_RIGHTS). Blocking with a deadline here; berthd
// uses the *_nowait calls behind Asio's readiness.
namespace berth {

// One message: at most kPacketBytesMax of payload and kPacketFdsMax descriptors, kept whole.
inline constexpr size_t kPacketBytesMax = size_t{128} << 10;
inline constexpr size_t kPacketFdsMax = 64;

struct Packet {
    std::string payload;
    std::vector<UniqueFd> fds;
};

struct PeerCredentials {
    int pid = 0;
    uint32_t uid = 0;
    uint32_t gid = 0;
    // The peer's supplementary groups when it connected; absent where the kernel does not tell.
    std::optional<std::vector<uint32_t>> groups;
    bool has_group(uint32_t group) const;
};

// Sends without waiting. false: the socket is full, try again when it is writable.
// Unavailable: the peer is gone. Descriptors are duplicated by the kernel; the caller keeps its
// own.
Result<bool> send_packet_nowait(int socket, std::string_view payload, const std::vector<int>& fds);
// Receives without waiting. false: nothing there yet. Unavailable: the peer closed.
// A message that is cut short (too many bytes or descriptors) is Corrupt, and all of its
// descriptors are closed.
Result<bool> receive_packet_nowait(int socket, Packet& packet);

// The same, waiting until `deadline` (DeadlineExceeded).
using Deadline = std::chrono::steady_clock::time_point;
Status send_packet(int socket, std::string_view payload, const std::vector<int>& fds,
                   Deadline deadline);
Result<Packet> receive_packet(int socket, Deadline deadline);

// A listening socket at `path` with the given mode; a stale file of a dead listener is replaced,
// a live one is AlreadyExists.
Result<UniqueFd> listen_packets(const std::string& path, int mode);
Result<UniqueFd> connect_packets(const std::string& path);
Result<UniqueFd> accept_packets(int listener);
// Two connected sockets, both close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> packet_pair();

Result<PeerCredentials> peer_credentials(int socket);

} // namespace berth
