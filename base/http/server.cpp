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
#include <unordered_map>

namespace berth::http {

namespace asio = boost::asio;

namespace {

using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

// After accept() failed for want of descriptors: how long to leave the queue alone.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// How long one who is turned away may take to send what he came with.
constexpr auto kPatience = std::chrono::milliseconds(500);
constexpr auto kNoPatience = std::chrono::milliseconds(0);
// Before what else waits for the loop gets its turn.
constexpr size_t kRequestsPerTurn = 8;

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

// "127.0.0.1:40312"; empty when it cannot be told.
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

bool is_loopback(const sockaddr* address) {
    if (address->sa_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
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
        : context_(context), setting_(std::make_shared<Connection::Setting>(
                                 std::make_shared<const Router>(std::move(router)), limits,
                                 Turnstile(context, kRequestsPerTurn))),
          tasks_(context) {}

    Status listen(UniqueFd fd, int family, std::shared_ptr<asio::ssl::context> tls = {}) {
        Acceptor acceptor(context_);
        boost::system::error_code error;
        acceptor.assign(asio::generic::stream_protocol(family, 0), fd.get(), error);
        if (error)
            return fail(ErrorCode::kIo, error.message());
        (void)fd.release();
        spare_.take();
        listeners_.push_back(
            std::make_shared<Listener>(std::move(acceptor), family, std::move(tls)));
        tasks_.start("http accept", accept(shared_from_this(), listeners_.back()));
        return {};
    }

    void stop() {
        for (const auto& listener : listeners_) {
            boost::system::error_code ignored;
            listener->acceptor.close(ignored);
        }
        listeners_.clear();
        for (const std::string& path : unix_paths_)
            ::unlink(path.c_str());
        unix_paths_.clear();
        tasks_.close();
        auto open = std::move(open_);
        open_.clear();
        for (const auto& [key, weak] : open)
            if (auto connection = weak.lock())
                connection->close();
    }

    size_t connections() const { return connection_count_; }
    void remember_path(const std::string& path) { unix_paths_.push_back(path); }

  private:
    struct Listener {
        Listener(Acceptor of, int of_family, std::shared_ptr<asio::ssl::context> with)
            : acceptor(std::move(of)), family(of_family), tls(std::move(with)) {}
        Acceptor acceptor;
        int family;
        std::shared_ptr<asio::ssl::context> tls;
    };

    static asio::awaitable<void> accept(std::shared_ptr<Core> self,
                                        std::shared_ptr<Listener> listener) {
        for (;;) {
            auto [error, socket] =
                co_await listener->acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
            if (!listener->acceptor.is_open() || error == asio::error::operation_aborted)
                co_return;
            if (error) {
                if (self->answer_without_descriptors(listener->acceptor, error.value()))
                    continue;
                log::warn("accept failed error=\"{}\", trying again in 100 ms", error.message());
                asio::steady_timer pause(self->context_, kAcceptPause);
                co_await pause.async_wait(asio::use_awaitable);
                self->spare_.take(); // somebody else may have been quicker when it was given up
                continue;
            }
            self->take_in(std::move(socket), *listener);
        }
    }

    void take_in(Socket socket, const Listener& listener) {
        // Asio accepts without close-on-exec; spawning happens on this same thread.
        int number = socket.native_handle();
        ::fcntl(number, F_SETFD, FD_CLOEXEC);
        RemoteEnd remote;
        std::string peer; // who it counts for
        if (listener.family == AF_UNIX) {
            if (auto known = peer_credentials(number)) {
                peer = fmt::format("user {}", known->uid);
                remote.credentials = std::move(*known);
            }
        } else {
            int on = 1;
            ::setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            remote.address = numeric_address(number);
            peer = "address " + remote.address.substr(0, remote.address.rfind(':'));
        }
        auto connection = std::make_shared<Connection>(std::move(socket), listener.tls, setting_,
                                                       std::move(remote));
        open_[connection.get()] = connection;
        tasks_.start("http connection",
                     serve(shared_from_this(), connection, std::move(peer), number));
    }

    // What a connection counts towards, for as long as it is open.
    class Counted {
      public:
        Counted(std::shared_ptr<Core> core, const Connection* connection, std::string peer)
            : core_(std::move(core)), connection_(connection), peer_(std::move(peer)) {
            ++core_->connection_count_;
            ++core_->of_peer_[peer_];
        }
        Counted(const Counted&) = delete;
        Counted& operator=(const Counted&) = delete;
        ~Counted() {
            --core_->connection_count_;
            if (--core_->of_peer_[peer_] == 0)
                core_->of_peer_.erase(peer_);
            core_->open_.erase(connection_);
        }
        size_t of_peer() const { return core_->of_peer_.at(peer_); }

      private:
        std::shared_ptr<Core> core_;
        const Connection* connection_;
        std::string peer_;
    };

    static asio::awaitable<void> serve(std::shared_ptr<Core> self,
                                       std::shared_ptr<Connection> connection, std::string peer,
                                       int fd) {
        Counted counted(self, connection.get(), peer);
        const ServerLimits& limits = self->setting_->limits;
        size_t per_peer = limits.connections_per_peer_max;
        std::optional<Error> refusal;
        if (self->connection_count_ > limits.connections_max)
            refusal = Error{ErrorCode::kUnavailable,
                            fmt::format("{} connections are open, which is the limit: try again "
                                        "later",
                                        limits.connections_max),
                            "TooManyConnections", 0};
        else if (leaves_too_few(fd, DescriptorUse::kOperator))
            refusal = no_room();
        else if (per_peer != 0 && counted.of_peer() > per_peer)
            refusal = Error{ErrorCode::kUnavailable,
                            fmt::format("{} connections of {} are open, which is the limit of one: "
                                        "close some",
                                        per_peer, peer),
                            "TooManyConnections", 0};
        if (!refusal) {
            co_await connection->serve();
            co_return;
        }
        self->tell_refused(*refusal);
        Error words = *refusal;
        co_await connection->turn_away(words, leaves_too_few(fd, DescriptorUse::kOwn) ? kNoPatience
                                                                                      : kPatience);
    }

    // One line a second at most: a crowd at the door must not fill the disk.
    void tell_refused(const Error& why) {
        ++refused_;
        auto now = std::chrono::steady_clock::now();
        if (now - told_ < std::chrono::seconds(1))
            return;
        told_ = now;
        log::warn("connections refused count={} open={}: {}", std::exchange(refused_, 0),
                  connection_count_, why.message);
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
    std::shared_ptr<Connection::Setting> setting_;
    SpareDescriptor spare_;
    TaskGroup tasks_;
    std::list<std::shared_ptr<Listener>> listeners_;
    std::unordered_map<const Connection*, std::weak_ptr<Connection>> open_;
    std::unordered_map<std::string, size_t> of_peer_;
    std::vector<std::string> unix_paths_;
    size_t connection_count_ = 0;
    uint64_t refused_ = 0; // since the last line about it
    std::chrono::steady_clock::time_point told_{};
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

Result<uint16_t> Server::listen_tcp(const std::string& host, uint16_t port,
                                    const TcpOptions& options) {
    std::shared_ptr<asio::ssl::context> tls;
    if (options.tls) {
        BERTH_ASSIGN(tls, tls_context(*options.tls));
    }
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    std::string what = fmt::format("{}:{}", host, port);
    if (int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); rc != 0)
        return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, ::gai_strerror(rc)));
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    if (options.loopback_only && !is_loopback(found->ai_addr))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}: this name leads to an address that is not this machine's own "
                                "(loopback)",
                                what));
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
    BERTH_TRY(core_->listen(std::move(fd), family, std::move(tls)));
    return chosen;
}

void Server::stop() {
    core_->stop();
}

size_t Server::connections() const {
    return core_->connections();
}

} // namespace berth::http
