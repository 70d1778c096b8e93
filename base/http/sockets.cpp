// SPDX-License-Identifier: Apache-2.0
#include "base/http/sockets.h"

#include <fmt/format.h>

#include <netdb.h>
#include <netinet/in.h>

namespace berth::http {

std::string numeric_address(int socket) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    char host[64] = {};
    char port[16] = {};
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
        ::getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof host, port,
                      sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return {};
    return peer.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                      : fmt::format("{}:{}", host, port);
}

Result<int> family_of(int socket) {
    int family = AF_UNSPEC;
    socklen_t size = sizeof family;
    if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0)
        return fail_errno("a socket's family");
    return family;
}

bool is_loopback(const sockaddr* address) {
    if (address->sa_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

uint16_t port_of(const sockaddr* address) {
    return address->sa_family == AF_INET6
               ? ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port)
               : ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

} // namespace berth::http
