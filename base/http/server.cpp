// SPDX-License-Identifier: Apache-2.0
#include "base/http/server.h"

#include "base/descriptors.h"
#include "base/http/connection.h"
#include "base/http/sockets.h"
#include "base/http/task_group.h"
#include "base/listen_socket.h"
#include "base/log.h"
#include "base/unix_address.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <list>
#include <netinet/tcp.h>
#include <sys/socket.h>
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
constexpr size_t kAcceptsPerTurn = 16;

} // namespace

class Server::Core : public std::enable_shared_from_this<Server::Core> {
  public:
    Core(asio::io_context& context, Router router, ServerLimits limits)
        : context_(context), setting_(std::make_shared<Connection::Setting>(
                                 std::make_shared<const Router>(std::move(router)), limits,
                                 Turnstile(context, kRequestsPerTurn), nullptr)),
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

    // What another process has left goes on, then the socket is answered.
    Status take_over(UniqueFd fd, int family, std::shared_ptr<Keeping> keeping) {
        setting_->keeping = std::move(keeping);
        if (setting_->keeping)
            for (Keeping::TakenOver& one : setting_->keeping->take_over())
                go_on(std::move(one));
        return listen(std::move(fd), family);
    }

    void drain() {
        close_listeners();
        if (setting_->keeping)
            setting_->keeping->begin_leaving();
        for (const std::shared_ptr<Connection>& connection : connections_now())
            connection->drain();
    }

    void leave() {
        drain();
        for (const std::shared_ptr<Connection>& connection : connections_now())
            connection->leave();
    }

    void stop() {
        close_listeners();
        for (const std::string& path : unix_paths_)
            (void)remove_socket(path);
        unix_paths_.clear();
        tasks_.close();
        auto open = std::move(open_);
        open_.clear();
        for (const auto& [key, weak] : open)
            if (auto connection = weak.lock())
                connection->close();
    }

    size_t connections() const { return connection_count_; }
    size_t answering() const {
        return static_cast<size_t>(
            std::ranges::count(connections_now(), true, &Connection::answering));
    }
    void remember_path(const std::string& path) { unix_paths_.push_back(path); }

  private:
    struct Listener {
        Listener(Acceptor of, int of_family, std::shared_ptr<asio::ssl::context> with)
            : acceptor(std::move(of)), family(of_family), tls(std::move(with)) {}
        Acceptor acceptor;
        int family;
        std::shared_ptr<asio::ssl::context> tls;
        bool is_kept() const { return family != AF_UNIX && !tls; }
    };

    void close_listeners() {
        for (const auto& listener : listeners_) {
            boost::system::error_code ignored;
            listener->acceptor.close(ignored);
        }
        listeners_.clear();
    }

    std::vector<std::shared_ptr<Connection>> connections_now() const {
        std::vector<std::shared_ptr<Connection>> all;
        for (const auto& [key, weak] : open_)
            if (auto connection = weak.lock())
                all.push_back(std::move(connection));
        return all;
    }

    void go_on(Keeping::TakenOver one) {
        Socket socket(context_);
        boost::system::error_code error;
        const int family = family_of(one.socket.get()).value_or(AF_INET);
        socket.assign(asio::generic::stream_protocol(family, 0), one.socket.get(), error);
        if (error) {
            log::warn("a connection cannot be taken over: {}", error.message());
            one.kept->end();
            return;
        }
        (void)one.socket.release();
        open(std::move(socket), family, nullptr, std::move(one.kept), /*is_new=*/false);
    }

    static asio::awaitable<void> accept(std::shared_ptr<Core> self,
                                        std::shared_ptr<Listener> listener) {
        while (self->setting_->keeping && listener->is_kept()) {
            auto [error] = co_await listener->acceptor.async_wait(
                Acceptor::wait_read, asio::as_tuple(asio::use_awaitable));
            if (!listener->acceptor.is_open() || error == asio::error::operation_aborted)
                co_return;
            if (!self->accept_kept(*listener))
                break;
        }
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
        ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
        open(std::move(socket), listener.family, listener.tls, nullptr, /*is_new=*/true);
    }

    void open(Socket socket, int family, std::shared_ptr<asio::ssl::context> tls,
              std::shared_ptr<KeptConnection> kept, bool is_new) {
        int number = socket.native_handle();
        RemoteEnd remote;
        std::string peer; // who it counts for
        if (family == AF_UNIX) {
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
        auto connection = std::make_shared<Connection>(std::move(socket), std::move(tls), setting_,
                                                       std::move(remote), std::move(kept));
        open_[connection.get()] = connection;
        tasks_.start("http connection",
                     serve(shared_from_this(), connection, std::move(peer), number, is_new));
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
                                       int fd, bool is_new) {
        Counted counted(self, connection.get(), peer);
        if (!is_new) { // it was let in by another process
            co_await connection->go_on();
            co_return;
        }
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

    // Between accept() and parking nobody but this process has the connection: as little as
    // possible lies between. False: for want of descriptors; the ordinary way tells why.
    bool accept_kept(Listener& listener) {
        for (size_t i = 0; i < kAcceptsPerTurn; ++i) {
            std::shared_ptr<KeptConnection> place = setting_->keeping->reserve();
            const int number = ::accept4(listener.acceptor.native_handle(), nullptr, nullptr,
                                         SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (number >= 0 && place && !setting_->keeping->park(number, *place))
                place.reset();
            if (number < 0) {
                const int why = errno;
                if (place)
                    place->end();
                return why != EMFILE && why != ENFILE && why != ENOBUFS && why != ENOMEM;
            }
            Socket socket(context_, asio::generic::stream_protocol(listener.family, 0), number);
            open(std::move(socket), listener.family, nullptr, std::move(place), /*is_new=*/true);
        }
        return true;
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

Result<std::string> Server::take_over(UniqueFd socket, std::shared_ptr<Keeping> keeping) {
    BERTH_ASSIGN(const int family, family_of(socket.get()));
    if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0)
        return fail_errno("the socket to answer");
    BERTH_ASSIGN(std::string endpoint, socket_endpoint(socket.get()));
    BERTH_TRY(core_->take_over(std::move(socket), family, std::move(keeping)));
    return endpoint;
}

void Server::drain() {
    core_->drain();
}

void Server::leave() {
    core_->leave();
}

Status Server::listen_unix(const std::string& path, int mode) {
    BERTH_ASSIGN(UniqueFd fd, listen_on_unix(path, mode));
    core_->remember_path(path);
    return core_->listen(std::move(fd), AF_UNIX);
}

Result<uint16_t> Server::listen_tcp(const std::string& host, uint16_t port,
                                    const TcpOptions& options) {
    std::shared_ptr<asio::ssl::context> tls;
    if (options.tls) {
        BERTH_ASSIGN(tls, tls_context(*options.tls));
    }
    BERTH_ASSIGN(UniqueFd fd, listen_on_tcp(host, port));
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
        return fail_errno(host);
    if (options.loopback_only && !is_loopback(reinterpret_cast<sockaddr*>(&bound)))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{}:{}: this name leads to an address that is not this machine's "
                                "own (loopback)",
                                host, port));
    BERTH_TRY(core_->listen(std::move(fd), bound.ss_family, std::move(tls)));
    return port_of(reinterpret_cast<sockaddr*>(&bound));
}

void Server::stop() {
    core_->stop();
}

size_t Server::connections() const {
    return core_->connections();
}

size_t Server::answering() const {
    return core_->answering();
}

} // namespace berth::http
