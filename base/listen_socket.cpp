// SPDX-License-Identifier: Apache-2.0
#include "base/listen_socket.h"

#include "base/unix_address.h"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr int kBacklog = 4096; // the system's own limit (net.core.somaxconn) holds besides

Result<UniqueFd> bind_and_listen(const sockaddr* address, socklen_t size, const std::string& what) {
    UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd)
        return fail_errno(what);
    const int yes = 1;
    if (address->sa_family != AF_UNIX)
        (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(fd.get(), address, size) != 0 || ::listen(fd.get(), kBacklog) != 0) {
        if (errno == EADDRINUSE)
            return fail(ErrorCode::kAlreadyExists,
                        fmt::format("{}: another process is listening there", what),
                        "AddressInUse");
        return fail_errno(what);
    }
    return fd;
}

bool somebody_listens(const sockaddr_un& address) {
    const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return probe && (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address),
                               sizeof address) == 0 ||
                     errno == EAGAIN);
}

} // namespace

Result<UniqueFd> listen_on_tcp(const std::string& host, uint16_t port) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const std::string what = fmt::format("{}:{}", host, port);
    if (int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); rc != 0)
        return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, ::gai_strerror(rc)));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    return bind_and_listen(found->ai_addr, found->ai_addrlen, what);
}

Result<UniqueFd> listen_on_unix(const std::string& path, int mode) {
    BERTH_ASSIGN(const sockaddr_un address, unix_address(path));
    if (somebody_listens(address))
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("{}: another process is listening there", path), "AddressInUse");
    BERTH_TRY(remove_socket(path));
    BERTH_ASSIGN(UniqueFd fd, bind_and_listen(reinterpret_cast<const sockaddr*>(&address),
                                              sizeof address, path));
    if (::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0)
        return fail_errno(path);
    return fd;
}

Result<std::string> socket_endpoint(int fd) {
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0)
        return fail_errno("getsockname");
    char text[INET6_ADDRSTRLEN] = {};
    if (bound.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(bound);
        ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
        return fmt::format("http://{}:{}", text, ntohs(v4.sin_port));
    }
    if (bound.ss_family == AF_INET6) {
        const auto& v6 = reinterpret_cast<const sockaddr_in6&>(bound);
        ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
        return fmt::format("http://[{}]:{}", text, ntohs(v6.sin6_port));
    }
    if (bound.ss_family == AF_UNIX && size > offsetof(sockaddr_un, sun_path))
        return fmt::format("unix:{}", reinterpret_cast<const sockaddr_un&>(bound).sun_path);
    return fail(ErrorCode::kUnsupported,
                fmt::format("a socket of family {} has no address that clients could use",
                            bound.ss_family));
}

} // namespace berth
