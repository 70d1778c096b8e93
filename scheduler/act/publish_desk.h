// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/process.h"
#include "scheduler/act/attach_desk.h"
#include "scheduler/act/fd_watch.h"
#include "scheduler/act/loader_runs.h"
#include "scheduler/act/node_context.h"

#include <map>
#include <optional>
#include <string>

namespace berth {

// Engines that fill memory themselves: publications, which become weight sets, and private loads,
// which stay their engine's. Each is a load of the node without a loader. A publication that is not
// sealed ends with its session; its bytes come free once its process has ended or said that it
// holds them no longer, since an engine whose connection broke still has them.
// Thread rule: the decision thread. The context, the attach desk and the server outlive it.
class PublishDesk {
  public:
    static constexpr size_t kRunsMax = 256;

    PublishDesk(NodeContext& context, AttachDesk& attach) : context_(context), attach_(attach) {}
    PublishDesk(const PublishDesk&) = delete;
    PublishDesk& operator=(const PublishDesk&) = delete;
    void use(SessionServer& server) { server_ = &server; }

    // What engines say; `pid` is the peer's, by its credentials.
    void publish(const Attacher& who, int pid, const protocol::Publish& asked);
    void private_load(const Attacher& who, int pid, const protocol::PrivateLoad& asked);
    void sealed(SessionId session, const protocol::Sealed& sealed, std::vector<UniqueFd> fds);
    void release(int pid, const protocol::Release& release);
    void canary(const Attacher& who, const protocol::Canary& canary);
    void session_closed(SessionId session);

    // What was decided; nothing happens for loads that are a loader's.
    void answered(const node::PublicationAnswered& answer);
    void go(node::LoadId load);
    void refuse(node::LoadId load, const Error& error);
    void kill(node::LoadId load);
    std::optional<HandedSet> take_sealed(node::LoadId load);
    void kept(node::LoadId load);

  private:
    struct Run {
        Attacher who; // session 0: its session has ended
        int pid = 0;
        uint64_t request = 0; // to be answered; 0: nobody waits
        protocol::Publish asked;
        bool is_private = false;
        std::string reason; // of a private load
        std::optional<node::LoadId> load;
        bool went = false;   // Go was said: it holds bytes
        bool over = false;   // the node knows how it ended
        bool handed = false; // its set is the node's
        std::optional<HandedSet> sealed;
        Process process;
        FdWatch watch;
        bool watched = false;
        bool process_ended = false;
    };
    using Runs = std::map<uint64_t, Run>;

    Runs::iterator find(node::LoadId load);
    void begin(Run run, const node::PublishRequested& event);
    void end_announced_before(const Run& again);
    void watch_process(uint64_t number, Run& run);
    // Tells the node its end, if that is news, and whether it still has its bytes.
    void end(Runs::iterator at, bool holds_bytes, Error why);
    void fail_request(Run& run, Error error);
    Error nearest_differences(const protocol::Publish& asked) const;
    Status check_sealed(const Run& run, const protocol::Sealed& sealed,
                        const std::vector<UniqueFd>& fds) const;

    NodeContext& context_;
    AttachDesk& attach_;
    SessionServer* server_ = nullptr;
    Runs runs_;
    uint64_t next_ = 1;
};

} // namespace berth
