// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/attach_desk.h"
#include "scheduler/act/crew_book.h"
#include "scheduler/act/node_context.h"
#include "scheduler/act/process_table.h"
#include "scheduler/act/publish_desk.h"
#include "scheduler/wire/session_server.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace berth {

// The engines' side of the node: who each session is, what it says as events, and commands to it.
// A session begins with Hello; an instance proves itself with its token, anyone else is a guest.
// Thread rule: the decision thread. The context and the desks it uses outlive it.
class EngineDesk final : public SessionServer::Observer {
  public:
    EngineDesk(NodeContext& context, AttachDesk& attach, PublishDesk& publish,
               ProcessTable& processes, CrewBook& crews, PeerPolicy policy);

    // For what a returning engine gives back of the socket that it inherited.
    using GivenBack = std::function<void(const node::Instance&, std::vector<UniqueFd>)>;
    void use(GivenBack given_back) { given_back_ = std::move(given_back); }

    Status listen(const std::string& path, int mode) { return server_.listen(path, mode); }
    void stop() { server_.stop(); }
    SessionServer& server() { return server_; }
    size_t sessions() const { return server_.size(); }

    void command(const node::SendCommand& command);
    // Closes the connection that is known by that name: its engine connects again.
    void renew(const node::InstanceName& rank_name);
    // The documents are others: gates get their share, and engines whose class, targets or part in
    // the gate have changed are welcomed again.
    void tell_rules();
    void on_session(SessionId id, const PeerCredentials& peer) override;
    void on_message(SessionId id, protocol::Message message, std::vector<UniqueFd> fds) override;
    void on_session_closed(SessionId id, const std::string& why) override;

  private:
    // A process that has ended may have left words unread, and its end of the socket to a child.
    static constexpr std::chrono::seconds kLastWords{1};
    struct Session {
        bool greeted = false;
        bool watched = false;
        Attacher who;
        protocol::Welcome welcome; // what it was told last
        std::unique_ptr<boost::asio::steady_timer> last_words;
    };

    // From the first thing on that it may come to hold: one who only says hello costs no
    // descriptor.
    void watch_process(SessionId id, Session& session);
    void process_ended(SessionId id);
    void tell_of_death(const Session& session);

    void hello(SessionId id, Session& session, const protocol::Hello& hello);
    void hello_instance(SessionId id, Session& session, const protocol::Hello& hello,
                        const node::Instance& instance, uint32_t rank);
    std::optional<uint32_t> rank_with(const node::Instance& instance,
                                      const std::string& token) const;
    void welcome_guest(SessionId id, Session& session, const protocol::Hello& hello);
    // Whether it was one about filling memory; then it is dealt with.
    bool publishing_message(SessionId id, const Session& session, const protocol::Message& message,
                            std::vector<UniqueFd> fds);
    void engine_message(SessionId id, const Session& session, protocol::Message message);
    protocol::Welcome welcome_for(const node::Instance& instance, uint32_t rank, uint64_t reply_to,
                                  int& gate_fd);

    NodeContext& context_;
    GivenBack given_back_;
    AttachDesk& attach_;
    PublishDesk& publish_;
    ProcessTable& processes_;
    CrewBook& crews_;
    std::map<SessionId, Session> sessions_;
    std::map<node::InstanceName, SessionId> by_name_; // of each rank: see rank_name.h
    SessionServer server_; // last: its end calls back into the members above
};

} // namespace berth
