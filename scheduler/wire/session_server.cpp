// SPDX-License-Identifier: Apache-2.0
#include "scheduler/wire/session_server.h"

#include "base/log.h"
#include "base/unix_address.h"
#include "scheduler/wire/read_round.h"
#include "scheduler/wire/system_names.h"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <unistd.h>
#include <utility>

namespace berth {

namespace asio = boost::asio;

namespace {

// How often it is looked for silent ones, and how soon again while there are more.
constexpr std::chrono::milliseconds kSilentLook{1000};
constexpr std::chrono::milliseconds kSilentPause{1};

} // namespace

Result<PeerPolicy> PeerPolicy::of(uint32_t own_uid, const std::string& group) {
    PeerPolicy policy{own_uid, group, {}};
    if (group.empty())
        return policy;
    policy.gid = SystemNames().gid_of(group);
    if (!policy.gid)
        return fail(ErrorCode::kNotFound,
                    fmt::format("spec.group names the group '{}', which this system does not "
                                "have: create it or leave the field out",
                                group));
    return policy;
}

bool PeerPolicy::is_member(const PeerCredentials& peer) const {
    if (!gid)
        return false;
    return peer.has_group(*gid) || (!peer.groups && SystemNames().is_listed(peer.uid, group));
}

bool PeerPolicy::allows(const PeerCredentials& peer) const {
    return peer.uid == 0 || peer.uid == own_uid || is_member(peer);
}

Status PeerPolicy::give(const std::string& path) const {
    if (gid && ::chown(path.c_str(), static_cast<uid_t>(-1), *gid) != 0)
        return fail_errno(fmt::format("giving {} to group '{}'", path, group));
    return {};
}

SessionServer::SessionServer(asio::io_context& context, Observer& observer, PeerPolicy policy)
    : context_(context), observer_(observer), policy_(std::move(policy)), retry_(context),
      silent_(context), round_(std::make_shared<ReadRound>(context)) {}

SessionServer::~SessionServer() {
    stop();
}

Status SessionServer::listen(const std::string& path, int mode) {
    BERTH_ASSIGN(UniqueFd fd, listen_packets(path, mode));
    BERTH_TRY(policy_.give(path));
    path_ = path;
    spare_.take();
    listener_ = std::make_unique<asio::posix::stream_descriptor>(context_, fd.release());
    listener_->native_non_blocking(true);
    wait_for_peer();
    return {};
}

void SessionServer::stop() {
    if (!alive_)
        return;
    alive_.reset();
    if (listener_) {
        listener_.reset();
        (void)remove_socket(path_);
    }
    retry_.cancel();
    silent_.cancel();
    round_->stop();
    for (auto& [id, session] : sessions_)
        session.channel->close("berthd stops");
    sessions_.clear();
}

void SessionServer::wait_for_peer() {
    listener_->async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
                              if (!error && !alive.expired())
                                  accept_turn();
                          });
}

void SessionServer::accept_turn() {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
        auto socket = accept_packets(listener_->native_handle());
        if (socket) {
            admit(std::move(*socket));
            continue;
        }
        int why = socket.error().source;
        if (why == EAGAIN || why == EWOULDBLOCK)
            break;
        if (why == EINTR || why == ECONNABORTED)
            continue;
        if (is_descriptor_shortage(socket.error()) && accept_without_descriptors())
            continue;
        // Nobody can even be told: look again soon, instead of spinning on a ready listener.
        if (says_it_now())
            log::error("accepting an engine's connection: {}, trying again every 100 ms",
                       socket.error().message);
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
            if (error || alive.expired())
                return;
            spare_.take(); // somebody else may have been quicker when it was given up
            accept_turn();
        });
        return;
    }
    wait_for_peer();
}

// Not one is left: the spare one lets the newcomer in for as long as it takes to tell him.
bool SessionServer::accept_without_descriptors() {
    if (!spare_)
        return false;
    spare_.give_up();
    auto socket = accept_packets(listener_->native_handle());
    if (socket) {
        refuse(*socket, too_many_descriptors("this node takes no more engines now"));
        socket->reset();
    }
    spare_.take();
    return socket.has_value() && spare_;
}

void SessionServer::refuse(const UniqueFd& socket, Error error) {
    protocol::Failed failed;
    failed.error = std::move(error);
    (void)send_packet_nowait(socket.get(), protocol::encode(failed), {});
    ++refused_;
    if (!says_it_now())
        return;
    log::warn("newcomers refused count={} sessions={}: {}", refused_, sessions_.size(),
              failed.error.message);
    refused_ = 0;
}

// One line a second at most: a crowd at the door must not fill the disk.
bool SessionServer::says_it_now() {
    auto now = std::chrono::steady_clock::now();
    if (now - said_ < std::chrono::seconds(1))
        return false;
    said_ = now;
    return true;
}

void SessionServer::admit(UniqueFd socket) {
    auto peer = peer_credentials(socket.get());
    if (!peer)
        return refuse(socket, peer.error());
    if (!policy_.allows(*peer))
        return refuse(
            socket,
            Error{ErrorCode::kPermissionDenied,
                  fmt::format("user {} may not use this node: root, user {}{} may", peer->uid,
                              policy_.own_uid,
                              policy_.group.empty() ? std::string()
                                                    : " and the members of group " + policy_.group),
                  "PeerRefused", 0});
    if (auto why = no_room_for(socket.get(), peer->uid))
        return refuse(socket, std::move(*why));
    SessionId id = next_id_++;
    PacketChannel::Handlers handlers;
    handlers.on_packet = [this, id, alive = std::weak_ptr(alive_)](Packet packet) {
        if (!alive.expired())
            receive(id, std::move(packet));
    };
    handlers.on_bad_packet = [this, id, alive = std::weak_ptr(alive_)](const Error& error) {
        if (!alive.expired())
            fail_and_close(id, 0, error);
    };
    handlers.on_close = [this, id, alive = std::weak_ptr(alive_)](const std::string& why) {
        if (alive.expired())
            return;
        forget(id);
        observer_.on_session_closed(id, why);
    };
    Session session;
    session.channel = PacketChannel::open(context_, std::move(socket), std::move(handlers), round_);
    session.uid = peer->uid;
    session.opened = std::chrono::steady_clock::now();
    sessions_[id] = std::move(session);
    ++half_open_;
    ++users_[peer->uid].sessions;
    ++users_[peer->uid].half_open;
    observer_.on_session(id, *peer);
    watch_silent(kSilentLook);
}

std::optional<Error> SessionServer::no_room_for(int socket, uint32_t uid) const {
    auto full = [](std::string message, const char* reason) {
        return Error{ErrorCode::kResourceExhausted, std::move(message), reason, 0};
    };
    if (leaves_too_few(socket, DescriptorUse::kNewcomer))
        return too_many_descriptors("this node takes no more engines now");
    if (sessions_.size() >= kSessionsMax)
        return full(fmt::format("{} sessions are open, which is the limit: try again when engines "
                                "have left",
                                kSessionsMax),
                    "TooManySessions");
    auto found = users_.find(uid);
    OfUser user = found == users_.end() ? OfUser{} : found->second;
    if (user.sessions >= kSessionsPerUserMax)
        return full(fmt::format("user {} has {} sessions open, which is the limit of one user: "
                                "close some",
                                uid, user.sessions),
                    "TooManySessions");
    if (half_open_ >= kHalfOpenMax || user.half_open >= kHalfOpenPerUserMax)
        return full(fmt::format("{} connections have not said hello yet, {} of them of user {}: "
                                "try again in a moment",
                                half_open_, user.half_open, uid),
                    "TooManyHalfOpen");
    return std::nullopt;
}

void SessionServer::greeted(Session& session) {
    if (std::exchange(session.greeted, true))
        return;
    --half_open_;
    --users_[session.uid].half_open;
}

void SessionServer::forget(SessionId id) {
    auto found = sessions_.find(id);
    if (found == sessions_.end())
        return;
    greeted(found->second);
    auto user = users_.find(found->second.uid);
    if (--user->second.sessions == 0)
        users_.erase(user);
    sessions_.erase(found);
}

// Once a second, and only while somebody has not said hello.
void SessionServer::watch_silent(std::chrono::milliseconds after) {
    if (watching_silent_ || half_open_ == 0)
        return;
    watching_silent_ = true;
    silent_.expires_after(after);
    silent_.async_wait([this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
        if (error || alive.expired())
            return;
        watching_silent_ = false;
        watch_silent(end_silent() ? kSilentPause : kSilentLook);
    });
}

bool SessionServer::end_silent() {
    const auto too_old = std::chrono::steady_clock::now() - kHelloMax;
    int ended = 0;
    for (const auto& [id, session] : sessions_) {
        if (session.greeted || session.opened >= too_old || session.channel->is_ending())
            continue;
        if (ended++ == kSilentPerTurn)
            return true;
        fail_and_close(id, 0,
                       Error{ErrorCode::kDeadlineExceeded,
                             fmt::format("nothing was said on this connection for {} s: a session "
                                         "begins with hello",
                                         kHelloMax.count()),
                             "NoHello", 0});
    }
    return false;
}

void SessionServer::receive(SessionId id, Packet packet) {
    auto message = protocol::decode(packet.payload);
    if (!message) {
        fail_and_close(id, 0, message.error());
        return;
    }
    if (auto found = sessions_.find(id);
        found != sessions_.end() && std::holds_alternative<protocol::Hello>(*message))
        greeted(found->second);
    observer_.on_message(id, std::move(*message), std::move(packet.fds));
}

void SessionServer::send(SessionId id, const protocol::Message& message,
                         const std::vector<int>& fds) {
    if (auto found = sessions_.find(id); found != sessions_.end())
        found->second.channel->send(protocol::encode(message), fds);
}

void SessionServer::fail_and_close(SessionId id, uint64_t reply_to, Error error) {
    auto found = sessions_.find(id);
    if (found == sessions_.end())
        return;
    protocol::Failed failed;
    failed.id = reply_to;
    failed.error = std::move(error);
    found->second.channel->send(protocol::encode(failed));
    found->second.channel->close_after_sending(failed.error.message);
}

void SessionServer::close(SessionId id, const std::string& why) {
    if (auto found = sessions_.find(id); found != sessions_.end())
        found->second.channel->close(why);
}

} // namespace berth
