// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/descriptors.h"
#include "engine_shim/protocol/messages.h"
#include "scheduler/wire/packet_channel.h"

#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace berth {

class ReadRound;

using SessionId = uint64_t;

// Who may connect: root, this process's own user, and the members of one group. A member is who
// has the group now, by the kernel's word; the system's databases are asked only where the kernel
// does not tell.
struct PeerPolicy {
    uint32_t own_uid = 0;
    std::string group;           // empty: nobody but root and the own user
    std::optional<uint32_t> gid; // the group's
    // NotFound for a group that this system does not have.
    static Result<PeerPolicy> of(uint32_t own_uid, const std::string& group);
    bool allows(const PeerCredentials& peer) const;
    bool is_member(const PeerCredentials& peer) const;
    // Gives the file to the group, where there is one.
    Status give(const std::string& path) const;
};

// The sessions of engines (and guests) on berthd.sock: accepts, checks who it is, decodes, and
// hands on whole messages. It knows no instance and no weight set; what a message means is decided
// by its observer.
//
// Thread rule: the io_context's one thread. The observer outlives it. A message that cannot be
// read is answered with Failed in words, then the session is closed; so is one in which nothing has
// been said for kHelloMax. A newcomer who finds no room (sessions, descriptors, those of one user)
// is told so in words too; those who are in go on.
class SessionServer {
  public:
    static constexpr size_t kSessionsMax = 4'096;
    // One user cannot keep the others out: three quarters of them, and of the descriptors.
    static constexpr size_t kSessionsPerUserMax = kSessionsMax / 4 * 3;
    // Sessions that have not said hello.
    static constexpr size_t kHalfOpenMax = 512;
    static constexpr size_t kHalfOpenPerUserMax = 256;
    static constexpr std::chrono::seconds kHelloMax{10};
    // Newcomers looked at before those who are in get their turn, and silent ones ended.
    static constexpr int kAcceptsPerTurn = 16;
    static constexpr int kSilentPerTurn = 16;

    class Observer {
      public:
        Observer() = default;
        Observer(const Observer&) = delete;
        Observer& operator=(const Observer&) = delete;
        virtual ~Observer() = default;
        virtual void on_session(SessionId id, const PeerCredentials& peer) = 0;
        virtual void on_message(SessionId id, protocol::Message message,
                                std::vector<UniqueFd> fds) = 0;
        virtual void on_session_closed(SessionId id, const std::string& why) = 0;
    };

    SessionServer(boost::asio::io_context& context, Observer& observer, PeerPolicy policy);
    SessionServer(const SessionServer&) = delete;
    SessionServer& operator=(const SessionServer&) = delete;
    ~SessionServer();

    Status listen(const std::string& path, int mode);
    void stop();

    // All of these ignore sessions that have ended.
    void send(SessionId id, const protocol::Message& message, const std::vector<int>& fds = {});
    void fail_and_close(SessionId id, uint64_t reply_to, Error error);
    void close(SessionId id, const std::string& why);
    bool has(SessionId id) const { return sessions_.contains(id); }
    size_t size() const { return sessions_.size(); }
    size_t half_open() const { return half_open_; }

  private:
    struct Session {
        std::shared_ptr<PacketChannel> channel;
        uint32_t uid = 0;
        bool greeted = false;
        std::chrono::steady_clock::time_point opened;
    };
    struct OfUser {
        size_t sessions = 0;
        size_t half_open = 0;
    };
    void wait_for_peer();
    void accept_turn();
    bool accept_without_descriptors();
    void admit(UniqueFd socket);
    std::optional<Error> no_room_for(int socket, uint32_t uid) const;
    void greeted(Session& session);
    void forget(SessionId id);
    void watch_silent(std::chrono::milliseconds after);
    bool end_silent(); // whether there are more of them
    void refuse(const UniqueFd& socket, Error error);
    bool says_it_now();
    void receive(SessionId id, Packet packet);

    boost::asio::io_context& context_;
    Observer& observer_;
    PeerPolicy policy_;
    std::string path_;
    std::unique_ptr<boost::asio::posix::stream_descriptor> listener_;
    boost::asio::steady_timer retry_;
    SpareDescriptor spare_;
    uint64_t refused_ = 0; // since the last line about it
    std::chrono::steady_clock::time_point said_{};
    std::map<SessionId, Session> sessions_;
    std::map<uint32_t, OfUser> users_;
    size_t half_open_ = 0;
    boost::asio::steady_timer silent_; // armed while there are half-open sessions
    bool watching_silent_ = false;
    std::shared_ptr<ReadRound> round_;
    SessionId next_id_ = 1;
    // Handlers that outlive the server find this gone and do nothing.
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace berth
