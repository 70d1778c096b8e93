// SPDX-License-Identifier: Apache-2.0
#include "scheduler/wire/session_server.h"

#include "base/log.h"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

namespace berth {

namespace asio = boost::asio;

namespace {

// Whether a user is a member of a group, by primary group or by the group's list. Both look-ups go
// to the system's databases; they are made once a connection, never once a message.
bool is_member(uint32_t uid, uint32_t gid, const std::string& group_name) {
    group entry{};
    group* found = nullptr;
    std::vector<char> buffer(16 << 10);
    if (::getgrnam_r(group_name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
        found == nullptr)
        return false;
    if (found->gr_gid == gid)
        return true;
    passwd user{};
    passwd* user_found = nullptr;
    std::vector<char> user_buffer(16 << 10);
    if (::getpwuid_r(uid, &user, user_buffer.data(), user_buffer.size(), &user_found) != 0 ||
        user_found == nullptr)
        return false;
    for (char** member = found->gr_mem; *member != nullptr; ++member)
        if (std::string_view(*member) == user_found->pw_name)
            return true;
    return false;
}

} // namespace

bool PeerPolicy::allows(const PeerCredentials& peer) const {
    return peer.uid == 0 || peer.uid == own_uid ||
           (!group.empty() && is_member(peer.uid, peer.gid, group));
}

SessionServer::SessionServer(asio::io_context& context, Observer& observer, PeerPolicy policy)
    : context_(context), observer_(observer), policy_(std::move(policy)), retry_(context) {}

SessionServer::~SessionServer() {
    stop();
}

Status SessionServer::listen(const std::string& path, int mode) {
    BERTH_ASSIGN(UniqueFd fd, listen_packets(path, mode));
    if (!policy_.group.empty()) {
        group entry{};
        group* found = nullptr;
        std::vector<char> buffer(16 << 10);
        ::getgrnam_r(policy_.group.c_str(), &entry, buffer.data(), buffer.size(), &found);
        if (found == nullptr)
            return fail(ErrorCode::kNotFound,
                        fmt::format("spec.group names the group '{}', which this system does not "
                                    "have: create it or leave the field out",
                                    policy_.group));
        if (::chown(path.c_str(), static_cast<uid_t>(-1), found->gr_gid) != 0)
            return fail_errno(fmt::format("giving {} to group '{}'", path, policy_.group));
    }
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
        ::unlink(path_.c_str());
    }
    retry_.cancel();
    for (auto& [id, channel] : sessions_)
        channel->close("berthd stops");
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
    if (leaves_too_few(socket.get(), DescriptorUse::kNewcomer))
        return refuse(socket, too_many_descriptors("this node takes no more engines now"));
    if (sessions_.size() >= kSessionsMax)
        return refuse(socket, Error{ErrorCode::kResourceExhausted,
                                    fmt::format("{} sessions are open, which is the limit: try "
                                                "again when engines have left",
                                                kSessionsMax),
                                    "TooManySessions", 0});
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
        sessions_.erase(id);
        observer_.on_session_closed(id, why);
    };
    sessions_[id] = PacketChannel::open(context_, std::move(socket), std::move(handlers));
    observer_.on_session(id, *peer);
}

void SessionServer::receive(SessionId id, Packet packet) {
    auto message = protocol::decode(packet.payload);
    if (!message) {
        fail_and_close(id, 0, message.error());
        return;
    }
    observer_.on_message(id, std::move(*message), std::move(packet.fds));
}

void SessionServer::send(SessionId id, const protocol::Message& message,
                         const std::vector<int>& fds) {
    if (auto found = sessions_.find(id); found != sessions_.end())
        found->second->send(protocol::encode(message), fds);
}

void SessionServer::fail_and_close(SessionId id, uint64_t reply_to, Error error) {
    auto found = sessions_.find(id);
    if (found == sessions_.end())
        return;
    protocol::Failed failed;
    failed.id = reply_to;
    failed.error = std::move(error);
    found->second->send(protocol::encode(failed));
    found->second->close_after_sending(failed.error.message);
}

void SessionServer::close(SessionId id, const std::string& why) {
    if (auto found = sessions_.find(id); found != sessions_.end())
        found->second->close(why);
}

} // namespace berth
