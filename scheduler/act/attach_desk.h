// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache/weights/fingerprint.h"
#include "scheduler/act/node_context.h"
#include "scheduler/act/peer_process.h"
#include "scheduler/act/tenant_gate.h"
#include "scheduler/wire/session_server.h"

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace berth {

// Who asks to attach.
struct Attacher {
    SessionId session = 0;
    node::InstanceName instance;          // empty: a guest
    uint32_t rank = 0;                    // of several that the instance has
    std::string holder;                   // for people
    int pid = 0;                          // by its credentials
    uint32_t uid = 0;                     // likewise
    std::shared_ptr<PeerProcess> process; // null: cannot be watched
};

// Answers Attach: finds the set, checks that it is what was asked for, and replies with its
// descriptors; or has it loaded, passes the progress on, and replies then. Each reply is a lease
// that ends with the session.
//
// A set whose checkpoint was seen unchanged within kVerifiedFor is answered at once, without a
// system call on the disk; otherwise a worker looks at the files' sizes and times first.
// Thread rule: the decision thread. The context, the server and the pool outlive it.
class AttachDesk {
  public:
    static constexpr std::chrono::seconds kVerifiedFor{5};
    static constexpr size_t kWaitersMax = 1'024;
    // Of one session: more would be answered faster than it can take the descriptors.
    static constexpr size_t kSessionWaitersMax = 8;

    AttachDesk(NodeContext& context, WorkerPool& workers) : context_(context), workers_(workers) {}
    AttachDesk(const AttachDesk&) = delete;
    AttachDesk& operator=(const AttachDesk&) = delete;
    void use(SessionServer& server) { server_ = &server; }

    void handle(const Attacher& who, const protocol::Attach& request);
    // One who is back has that set mapped: a lease again. False: it is not resident any more.
    bool take_back(const Attacher& who, const protocol::PrivateLoad& held);
    void session_closed(SessionId session);
    void progress(const node::LoadProgress& progress);
    void load_finished(const node::LoadFinished& finished);
    void dropped(const node::WeightSetId& set, const node::DeviceId& device);
    // To the one who has published it, as the answer to `request`.
    void hand_out(const Attacher& publisher, uint64_t request, const ResidentSet& set);
    // The digest that the set's publisher left, empty if none did.
    std::string canary_of(const ResidentSet& set) { return known(set).canary; }

  private:
    using Clock = std::chrono::steady_clock;
    using SetKey = std::pair<std::string, std::string>; // id, device
    struct Waiter {
        Attacher who;
        protocol::Attach request;
        node::LoadKey key;
        Clock::time_point asked;
    };
    struct Known {
        protocol::Environment environment;
        std::map<std::string, Clock::time_point> verified; // by path
        std::string canary;
    };

    Result<node::LoadKey> key_of(const Attacher& who, const protocol::Attach& request) const;
    void answer_by_id(Waiter waiter);
    void answer_by_key(Waiter waiter);
    void ask_for_load(Waiter waiter);
    // Verifies what must be, then grants.
    void answer_with(Waiter waiter, const ResidentSet& set);
    void grant(const Waiter& waiter, const ResidentSet& set, bool is_publisher = false);
    void lease(const Attacher& who, const node::WeightSetId& set, const node::DeviceId& device);
    void wait_for(Waiter waiter, std::optional<node::LoadRequested> wanted);
    void refuse(const Waiter& waiter, Error error);
    Known& known(const ResidentSet& set);
    // What the tenant of the one who waits allows.
    Status may_attach(const Waiter& waiter, const std::string& path, const std::string& model) {
        return tenants_.allows(context_.state(), {waiter.who.instance, waiter.who.uid}, path,
                               model);
    }

    NodeContext& context_;
    WorkerPool& workers_;
    SessionServer* server_ = nullptr;
    TenantGate tenants_;
    std::list<Waiter> waiters_;
    std::map<SetKey, Known> known_;
    std::map<SessionId, std::vector<node::LeaseId>> leases_;
    std::map<SessionId, std::set<SetKey>> attached_;
    uint64_t next_lease_ = 1;
};

// The environment that a set was made for, out of its fingerprint's document.
protocol::Environment environment_of(const std::string& document);
// The fields of `wanted` that `have` does not meet, as a table for people; empty: it may be used.
std::string environment_differences(const protocol::Environment& have,
                                    const protocol::Environment& wanted);

} // namespace berth
