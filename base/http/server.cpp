// SPDX-License-Identifier: Apache-2.0
#include "base/http/server.h"

#include "base/http/server_core.h"
#include "base/http/sockets.h"
#include "base/listen_socket.h"
#include "base/log.h"
#include "base/unix_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace berth::http {

namespace {

// Before what else waits for the loop gets its turn.
constexpr size_t kRequestsPerTurn = 8;

} // namespace

Server::Core::Core(asio::io_context& context, Router router, ServerLimits limits)
    : context_(context), setting_(std::make_shared<Connection::Setting>(
                             std::make_shared<const Router>(std::move(router)), limits,
                             Turnstile(context, kRequestsPerTurn), nullptr)),
      tasks_(context), has_room_(context) {}

Status Server::Core::listen(UniqueFd fd, int family, std::shared_ptr<asio::ssl::context> tls,
                            bool waits_when_full) {
    Acceptor acceptor(context_);
    boost::system::error_code error;
    acceptor.assign(asio::generic::stream_protocol(family, 0), fd.get(), error);
    if (error)
        return fail(ErrorCode::kIo, error.message());
    (void)fd.release();
    spare_.take();
    listeners_.push_back(
        std::make_shared<Listener>(std::move(acceptor), family, std::move(tls), waits_when_full));
    tasks_.start("http accept", accept(shared_from_this(), listeners_.back()));
    return {};
}

// What another process has left goes on, then the socket is answered.
Status Server::Core::take_over(UniqueFd fd, int family, std::shared_ptr<Keeping> keeping) {
    setting_->keeping = std::move(keeping);
    if (setting_->keeping) {
        for (Keeping::TakenOver& one : setting_->keeping->take_over())
            go_on(std::move(one));
    }
    return listen(std::move(fd), family, {}, /*waits_when_full=*/true);
}

// Those that end here are out of the journal before what is left is written down.
void Server::Core::leave(Leave what) {
    close_listeners();
    std::vector<std::shared_ptr<Connection>> left;
    for (std::shared_ptr<Connection>& connection : connections_now()) {
        if (connection->has_left())
            continue;
        if (connection->goes_over(what))
            left.push_back(std::move(connection));
        else if (what == Leave::kLate && connection->is_kept())
            connection->leave_late();
        else
            connection->finish();
    }
    if (setting_->keeping)
        setting_->keeping->begin_leaving();
    for (const std::shared_ptr<Connection>& connection : left)
        connection->leave();
}

size_t Server::Core::unfinished() const {
    return static_cast<size_t>(std::ranges::count(connections_now(), false, &Connection::has_left));
}

size_t Server::Core::answering() const {
    return static_cast<size_t>(std::ranges::count(connections_now(), true, &Connection::answering));
}

void Server::Core::stop() {
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

void Server::Core::close_listeners() {
    for (const auto& listener : listeners_) {
        boost::system::error_code ignored;
        listener->acceptor.close(ignored);
    }
    listeners_.clear();
}

std::vector<std::shared_ptr<Connection>> Server::Core::connections_now() const {
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [key, weak] : open_)
        if (auto connection = weak.lock())
            all.push_back(std::move(connection));
    return all;
}

void Server::Core::go_on(Keeping::TakenOver one) {
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

void Server::leave(Leave what) {
    core_->leave(what);
}

size_t Server::unfinished() const {
    return core_->unfinished();
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
