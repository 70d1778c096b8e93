// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/http/http.h"
#include "scheduler/admin/tokens.h"
#include "scheduler/wire/session_server.h"
#include "scheduler/wire/system_names.h"

#include <optional>
#include <string>
#include <vector>

namespace berth {

// Who calls the admin interface.
struct Caller {
    std::string name;    // "user alice", "user 1002", "token grafana", "nobody"
    std::string details; // for the audit: "uid=1002 pid=77", "" over TCP
    std::string from;    // "unix", or the peer's address
    bool is_known = false;
    std::optional<policies::Role> role; // the highest that a rule gives
};

// Who may what: peers of the Unix socket by their credentials, peers over TCP by their token. Root
// and the daemon's own user are always admin: who may replace the daemon need not be kept out. With
// no `access` rules the node's group is operator.
//
// Thread rule: the decision thread. Names are looked up when the rules are set, never at a call;
// that of a changing caller once a minute, for the audit.
class Access {
  public:
    // Files that cannot be read, groups and users that do not exist: at a start an error, or a
    // warning where the rest can stand.
    static Result<Access> of(const policies::NodeSpec& node, PeerPolicy peers);
    // Reads rules and tokens anew; on failure all stays as it was.
    Status set(const policies::NodeSpec& node);
    const std::vector<std::string>& warnings() const { return warnings_; }

    Caller identify(const http::Request& request) const;
    // With the caller's name, for people.
    Caller named(Caller caller, const http::Request& request);
    // Unauthenticated, WrongToken; NoRole, RoleTooLow: who it is, which role it has and which it
    // takes, and where that is changed.
    Status allows(const Caller& caller, policies::Role needed, const http::Request& request) const;

  private:
    struct Rule {
        policies::Role role = policies::Role::kViewer;
        std::vector<uint32_t> uids;
        std::vector<uint32_t> gids;
    };
    explicit Access(PeerPolicy peers) : peers_(std::move(peers)) {}
    std::optional<policies::Role> role_of(const PeerCredentials& peer) const;

    PeerPolicy peers_;
    SystemNames names_;
    std::vector<Rule> rules_;
    bool has_rules_ = false;
    Tokens tokens_;
    std::string token_file_;
    std::string document_; // where the Node document is
    std::vector<std::string> warnings_;
};

} // namespace berth
