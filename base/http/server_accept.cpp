// SPDX-License-Identifier: Apache-2.0
// How a server takes connections in, and turns away those for which it has no room.
#include "base/http/server_core.h"

#include "base/descriptors.h"
#include "base/http/sockets.h"
#include "base/log.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace berth::http {

namespace {

// After accept() failed for want of descriptors: how long to leave the queue alone.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// How long one who is turned away may take to send what he came with.
constexpr auto kPatience = std::chrono::milliseconds(500);
constexpr auto kNoPatience = std::chrono::milliseconds(0);
// Before what else waits for the loop gets its turn.
constexpr size_t kAcceptsPerTurn = 16;
// Full, and somebody waits: a peer that has sent nothing for so long makes room.
constexpr auto kIdleMin = std::chrono::seconds(1);
constexpr auto kLookForRoom = std::chrono::milliseconds(50);

Error no_room() {
    return too_many_descriptors("no more connections are taken here now");
}

} // namespace

asio::awaitable<void> Server::Core::accept(std::shared_ptr<Core> self,
                                           std::shared_ptr<Listener> listener) {
    while (self->setting_->keeping && listener->is_kept()) {
        if (!co_await somebody_to_take_in(self, listener))
            co_return;
        if (!self->accept_kept(*listener))
            break;
    }
    for (;;) {
        if (listener->waits_when_full && !co_await somebody_to_take_in(self, listener))
            co_return;
        auto [error, socket] =
            co_await listener->acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
        if (error && (!listener->acceptor.is_open() || error == asio::error::operation_aborted))
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
        if (!listener->acceptor.is_open())
            co_return;
    }
}

// Somebody waits in the queue, and there is room. False: nothing is accepted any more.
asio::awaitable<bool> Server::Core::somebody_to_take_in(std::shared_ptr<Core> self,
                                                        std::shared_ptr<Listener> listener) {
    auto [error] = co_await listener->acceptor.async_wait(Acceptor::wait_read,
                                                          asio::as_tuple(asio::use_awaitable));
    if (error == asio::error::operation_aborted)
        co_return false;
    while (listener->acceptor.is_open() && self->is_full()) {
        self->end_longest_idle();
        self->has_room_.expires_after(kLookForRoom); // or until a connection ends
        (void)co_await self->has_room_.async_wait(asio::as_tuple(asio::use_awaitable));
    }
    co_return listener->acceptor.is_open();
}

void Server::Core::end_longest_idle() {
    std::shared_ptr<Connection> longest;
    auto since = std::chrono::steady_clock::now() - kIdleMin;
    for (const std::shared_ptr<Connection>& one : connections_now())
        if (const auto idle = one->idle_since(); idle && *idle <= since) {
            since = *idle;
            longest = one;
        }
    if (longest)
        longest->end_idle();
}

void Server::Core::take_in(Socket socket, const Listener& listener) {
    // Asio accepts without close-on-exec; spawning happens on this same thread.
    ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    open(std::move(socket), listener.family, listener.tls, nullptr, /*is_new=*/true);
}

void Server::Core::open(Socket socket, int family, std::shared_ptr<asio::ssl::context> tls,
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
    if (is_new && listeners_.empty()) // it was accepted in the moment of leave()
        connection->finish();
}

Server::Core::Counted::Counted(std::shared_ptr<Core> core, const Connection* connection,
                               std::string peer)
    : core_(std::move(core)), connection_(connection), peer_(std::move(peer)) {
    ++core_->connection_count_;
    ++core_->of_peer_[peer_];
}

Server::Core::Counted::~Counted() {
    --core_->connection_count_;
    if (--core_->of_peer_[peer_] == 0)
        core_->of_peer_.erase(peer_);
    core_->open_.erase(connection_);
    core_->has_room_.cancel();
}

asio::awaitable<void> Server::Core::serve(std::shared_ptr<Core> self,
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
void Server::Core::tell_refused(const Error& why) {
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
bool Server::Core::accept_kept(Listener& listener) {
    for (size_t i = 0; i < kAcceptsPerTurn && !is_full(); ++i) {
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
bool Server::Core::answer_without_descriptors(Acceptor& acceptor, int error_number) {
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

} // namespace berth::http
