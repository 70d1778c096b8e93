// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <cstdint>

namespace berth::http {

// How far an accepted TCP connection has come, by the kernel's own count; asked on any descriptor
// of it, also after the process that used it was killed in the middle of a call. Bytes are counted
// from the connection's begin; neither SYN nor FIN is one.
struct TcpCount {
    uint64_t taken = 0;   // bytes that processes have read from it
    uint64_t given = 0;   // bytes that the kernel took from processes to send, sent or not
    bool is_over = false; // reset, or closed from this side: nothing can be sent any more
};
// Unsupported for what is not TCP: Unix sockets count no bytes that outlive a process.
Result<TcpCount> tcp_count(int socket);

} // namespace berth::http
