// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/act/attach_desk.h"
#include "scheduler/act/loader_runs.h"
#include "scheduler/act/node_context.h"

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace berth {

// Engines that fill memory themselves: publications, which become weight sets, and private loads,
// which stay their engine's. Each is a load of the node without a loader. A publication that is not
// sealed ends with its session; its bytes come free once its process has ended or said that it
// holds them no longer, since an engine whose connection broke still has them. What an engine says
// it has from before counts in any case, also where somebody else publishes that set by now.
// Thread rule: the decision thread. The context, the attach desk and the server outlive it.
class PublishDesk {
  public:
    // Publications and private loads: of all, of all where newcomers leave room for those who come
    // back with theirs, and of one process.
    static constexpr size_t kRunsMax = 256;
    static constexpr size_t kRunsHeldMax = 2 * kRunsMax;
    static constexpr size_t kProcessRunsMax = 32;

    PublishDesk(NodeContext& context, AttachDesk& attach) : context_(context), attach_(attach) {}
    PublishDesk(const PublishDesk&) = delete;
    PublishDesk& operator=(const PublishDesk&) = delete;
    void use(SessionServer& server) { server_ = &server; }

    // What engines say.
    void publish(const Attacher& who, const protocol::Publish& asked);
    void private_load(const Attacher& who, const protocol::PrivateLoad& asked);
    void sealed(SessionId session, const protocol::Sealed& sealed, std::vector<UniqueFd> fds);
    void release(const Attacher& who, const protocol::Release& release);
    void canary(const Attacher& who, const protocol::Canary& canary);
    void session_closed(SessionId session);
    // Some engine's process has: those without a session are looked at.
    void process_ended();

    // What was decided; nothing happens for loads that are a loader's.
    void answered(const node::PublicationAnswered& answer);
    void go(node::LoadId load);
    void refuse(node::LoadId load, const Error& error);
    void kill(node::LoadId load);
    std::optional<HandedSet> take_sealed(node::LoadId load);
    void kept(node::LoadId load);

  private:
    // One who comes back says what it holds and, without waiting, hands it over.
    struct EarlySeal {
        protocol::Sealed message;
        std::vector<UniqueFd> fds;
    };
    struct Run {
        Attacher who;         // session 0: its session has ended
        uint64_t request = 0; // to be answered; 0: nobody waits
        protocol::Publish asked;
        bool is_private = false;
        std::string reason;          // of a private load
        uint64_t overhead_bytes = 0; // of its loader, while that lives
        bool is_set() const { return !is_private && !counted_only; }
        bool counted_only = false; // it holds what it may not publish
        bool let_go = false;       // it holds nothing, or said later what it holds
        std::optional<node::LoadId> load;
        bool went = false;   // Go was said: it holds bytes
        bool over = false;   // the node knows how it ended
        bool handed = false; // its set is the node's
        std::optional<HandedSet> sealed;
        std::optional<EarlySeal> early; // it came before Go was said
        bool lives() const { return who.process && !who.process->ended(); }
        // Whether its bytes are there after its session's end.
        bool holds_bytes() const { return !let_go && (went || asked.held) && lives(); }
    };
    using Runs = std::map<uint64_t, Run>;
    static constexpr size_t kIdDigits = 16;

    static node::WeightSetId set_of(const std::string& fingerprint) {
        return node::WeightSetId(fingerprint.substr(0, kIdDigits));
    }
    // What does not fit a number fits no device: the node refuses it.
    static uint64_t sum(const std::vector<uint64_t>& parts);
    Runs::iterator find(node::LoadId load);
    void begin(Run run, const node::PublishRequested& event);
    void end_announced_before(const Run& again);
    std::optional<Error> too_many(const Run& run) const;
    bool loader_ended(const Attacher& who, const protocol::PrivateLoad& held);
    void find_only(Run run, const node::PublishRequested& event);
    // Tells the node its end, if that is news, and whether it still has its bytes.
    void end(Runs::iterator at, bool holds_bytes, Error why);
    void end_all(const std::function<bool(Run&)>& picked);
    void fail_request(Run& run, Error error);
    void take_early(SessionId session, std::optional<EarlySeal> early);
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
