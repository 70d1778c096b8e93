// SPDX-License-Identifier: Apache-2.0
#include "base/http/server.h"

#include "base/descriptors.h"
#include "base/http/connection.h"
#include "base/http/task_group.h"
#include "base/log.h"
#include "base/unix_address.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <list>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace berth::http {

namespace asio = boost::asio;

namespace {

using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

// After accept() failed for want of descriptors: how long to leave the queue alone.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// How long one who is turned away may take to send what he came with.
constexpr auto kPatience = std::chrono::milliseconds(500);
constexpr auto kNoPatience = std::chrono::milliseconds(0);

Result<UniqueFd> bind_and_listen(int family, const sockaddr* address, socklen_t size,
                                 const std::string& what) {
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd)
        return fail_errno("socket");
    int on = 1;
    if (family != AF_UNIX)
        ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd.get(), address, size) != 0)
        return fail_errno(fmt::format("binding {}", what));
    if (::listen(fd.get(), 256) != 0)
        return fail_errno(fmt::format("listening at {}", what));
    return fd;
}

bool somebody_listens(const sockaddr_un& address) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return fd &&
           ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

} // namespace

class Server::Core : public std::enable_shared_from_this<Server::Core> {
  public:
    Core(asio::io_context& context, Router router, ServerLimits limits)
        : context_(context), router_(std::make_shared<const Router>(std::move(router))),
          limits_(limits), tasks_(context) {}

    Status listen(UniqueFd fd, int family) {
        Acceptor acceptor(context_);
        boost::system::error_code error;
        acceptor.assign(asio::generic::stream_protocol(family, 0), fd.get(), error);
        if (error)
            return fail(ErrorCode::kIo, error.message());
        (void)fd.release();
        spare_.take();
        acceptors_.push_back(std::make_shared<Acceptor>(std::move(acceptor)));
        tasks_.start("http accept", accept(shared_from_this(), acceptors_.back(), family));
        return {};
    }

    void stop() {
        for (const auto& acceptor : acceptors_) {
            boost::system::error_code ignored;
            acceptor->close(ignored);
        }
        acceptors_.clear();
        for (const std::string& path : unix_paths_)
            ::unlink(path.c_str());
        unix_paths_.clear();
        tasks_.close();
        auto connections = std::move(connections_);
        connections_.clear();
        for (const auto& weak : connections)
            if (auto connection = weak.lock())
                connection->close();
    }

    size_t connections() const { return connection_count_; }
    void remember_path(const std::string& path) { unix_paths_.push_back(path); }

  private:
    static asio::awaitable<void> accept(std::shared_ptr<Core> self,
                                        std::shared_ptr<Acceptor> acceptor, int family) {
        for (;;) {
            auto [error, socket] =
                co_await acceptor->async_accept(asio::as_tuple(asio::use_awaitable));
            if (!acceptor->is_open() || error == asio::error::operation_aborted)
                co_return;
            if (error) {
                if (self->answer_without_descriptors(*acceptor, error.value()))
                    continue;
                log::warn("accept failed error=\"{}\", trying again in 100 ms", error.message());
                asio::steady_timer pause(self->context_, kAcceptPause);
                co_await pause.async_wait(asio::use_awaitable);
                self->spare_.take(); // somebody else may have been quicker when it was given up
                continue;
            }
            // Asio accepts without close-on-exec; spawning happens on this same thread.
            ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
            std::optional<PeerCredentials> credentials;
            int on = 1;
            if (family == AF_UNIX) {
                if (auto known = peer_credentials(socket.native_handle()))
                    credentials = *known;
            } else {
                ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            }
            int number = socket.native_handle();
            auto connection = std::make_shared<Connection>(std::move(socket), self->router_,
                                                           self->limits_, credentials);
            self->connections_.remove_if([](const auto& weak) { return weak.expired(); });
            self->connections_.push_back(connection);
            self->tasks_.start("http connection", serve(self, connection, number));
        }
    }

    static asio::awaitable<void> serve(std::shared_ptr<Core> self,
                                       std::shared_ptr<Connection> connection, int fd) {
        struct Counted {
            size_t& count;
            explicit Counted(size_t& of) : count(of) { ++count; }
            ~Counted() { --count; }
        };
        Counted counted(self->connection_count_);
        if (self->connection_count_ > self->limits_.connections_max)
            co_await connection->turn_away(Error{ErrorCode::kUnavailable,
                                                 "too many connections: try again later",
                                                 "TooManyConnections", 0},
                                           kPatience);
        else if (leaves_too_few(fd, DescriptorUse::kOperator))
            co_await connection->turn_away(
                no_room(), leaves_too_few(fd, DescriptorUse::kOwn) ? kNoPatience : kPatience);
        else
            co_await connection->serve();
    }

    // Not one descriptor is left: the spare one lets the peer in for as long as it takes to send it
    // the answer. false: nobody could be told.
    bool answer_without_descriptors(Acceptor& acceptor, int error_number) {
        if ((error_number != EMFILE && error_number != ENFILE) || !spare_)
            return false;
        spare_.give_up();
        UniqueFd socket(
            ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket) {
            Response response = error_response(no_room());
            std::string bytes = fmt::format("HTTP/1.1 503 Service Unavailable\r\n"
                                            "Content-Type: application/json\r\n"
                                            "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
                                            response.body.size(), response.body);
            (void)!::send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        bool answered = static_cast<bool>(socket);
        socket.reset();
        spare_.take();
        return answered && spare_;
    }

    static Error no_room() {
        return too_many_descriptors("no more connections are taken here now");
    }

    asio::io_context& context_;
    std::shared_ptr<const Router> router_;
    ServerLimits limits_;
    SpareDescriptor spare_;
    TaskGroup tasks_;
    std::list<std::shared_ptr<Acceptor>> acceptors_;
    std::list<std::weak_ptr<Connection>> connections_;
    std::vector<std::string> unix_paths_;
    size_t connection_count_ = 0;
};

Server::Server(asio::io_context& context, Router router, ServerLimits limits)
    : core_(std::make_shared<Core>(context, std::move(router), limits)) {}

Server::~Server() {
    stop();
}

Status Server::listen_unix(const std::string& path, int mode) {
    BERTH_ASSIGN(sockaddr_un address, unix_address(path));
    if (somebody_listens(address))
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("{}: another process is listening there", path));
    ::unlink(path.c_str());
    BERTH_ASSIGN(UniqueFd fd, bind_and_listen(AF_UNIX, reinterpret_cast<sockaddr*>(&address),
                                              sizeof address, path));
    if (::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0)
        return fail_errno(path);
    core_->remember_path(path);
    return core_->listen(std::move(fd), AF_UNIX);
}

Result<uint16_t> Server::listen_tcp(const std::string& host, uint16_t port) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    std::string what = fmt::format("{}:{}", host, port);
    if (int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); rc != 0)
        return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, ::gai_strerror(rc)));
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    BERTH_ASSIGN(UniqueFd fd,
                 bind_and_listen(found->ai_family, found->ai_addr, found->ai_addrlen, what));
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
        return fail_errno(what);
    uint16_t chosen = bound.ss_family == AF_INET6
                          ? ntohs(reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port)
                          : ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
    int family = found->ai_family;
    BERTH_TRY(core_->listen(std::move(fd), family));
    return chosen;
}

void Server::stop() {
    core_->stop();
}

size_t Server::connections() const {
    return core_->connections();
}

} // namespace berth::http
