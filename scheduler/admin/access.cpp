// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace berth {

namespace {

// "Bearer TOKEN"; empty when the header is something else.
std::string_view bearer_of(const http::Request& request) {
    const std::string* header = request.headers.find("Authorization");
    constexpr std::string_view kScheme = "bearer ";
    if (header == nullptr || header->size() <= kScheme.size())
        return {};
    for (size_t i = 0; i < kScheme.size(); ++i)
        if (std::tolower(static_cast<unsigned char>((*header)[i])) != kScheme[i])
            return {};
    return std::string_view(*header).substr(kScheme.size());
}

bool contains(const std::vector<uint32_t>& numbers, uint32_t number) {
    return std::ranges::find(numbers, number) != numbers.end();
}

} // namespace

Result<Access> Access::of(const policies::NodeSpec& node, PeerPolicy peers) {
    Access access(std::move(peers));
    BERTH_TRY(access.set(node));
    return access;
}

Status Access::set(const policies::NodeSpec& node) {
    names_.forget();
    std::vector<std::string> warnings;
    std::vector<Rule> rules;
    for (const policies::AccessRule& spec : node.access) {
        Rule rule;
        rule.role = spec.role;
        auto take = [&](std::optional<uint32_t> id, const char* kind, const std::string& name,
                        std::vector<uint32_t>& into) {
            if (id)
                into.push_back(*id);
            else
                warnings.push_back(fmt::format("spec.access gives the role {} to the {} '{}', "
                                               "which this system does not have: ignored until "
                                               "SIGHUP",
                                               policies::to_string(spec.role), kind, name));
        };
        for (const std::string& user : spec.users)
            take(names_.uid_of(user), "user", user, rule.uids);
        for (const std::string& group : spec.groups)
            take(names_.gid_of(group), "group", group, rule.gids);
        rules.push_back(std::move(rule));
    }
    Tokens tokens;
    std::string token_file;
    if (node.admin_tcp) {
        token_file = node.admin_tcp->token_file;
        BERTH_ASSIGN(tokens, Tokens::read(token_file));
        if (!tokens.warning().empty())
            warnings.push_back(tokens.warning());
    }
    rules_ = std::move(rules);
    has_rules_ = !node.access.empty();
    tokens_ = std::move(tokens);
    token_file_ = std::move(token_file);
    document_ = node.origin.file;
    warnings_ = std::move(warnings);
    return {};
}

std::optional<policies::Role> Access::role_of(const PeerCredentials& peer) const {
    if (peer.uid == 0 || peer.uid == peers_.own_uid)
        return policies::Role::kAdmin;
    if (!has_rules_)
        return peers_.is_member(peer) ? std::optional(policies::Role::kOperator) : std::nullopt;
    std::optional<policies::Role> highest;
    for (const Rule& rule : rules_) {
        bool meant =
            contains(rule.uids, peer.uid) ||
            std::ranges::any_of(rule.gids, [&](uint32_t gid) { return peer.has_group(gid); });
        if (meant && (!highest || *highest < rule.role))
            highest = rule.role;
    }
    return highest;
}

Caller Access::identify(const http::Request& request) const {
    Caller caller;
    if (request.credentials) {
        caller.name = fmt::format("user {}", request.credentials->uid);
        caller.details =
            fmt::format("uid={} pid={}", request.credentials->uid, request.credentials->pid);
        caller.from = "unix";
        caller.is_known = true;
        caller.role = role_of(*request.credentials);
        return caller;
    }
    caller.name = "nobody";
    caller.from = request.address.empty() ? "unknown" : request.address;
    std::string_view token = bearer_of(request);
    if (token.empty())
        return caller;
    const Tokens::Token* found = tokens_.find(token);
    if (found == nullptr)
        return caller;
    caller.name = "token " + found->name;
    caller.is_known = true;
    caller.role = found->role;
    return caller;
}

Caller Access::named(Caller caller, const http::Request& request) {
    if (request.credentials)
        if (std::string name = names_.user_name(request.credentials->uid); !name.empty())
            caller.name = "user " + name;
    return caller;
}

Status Access::allows(const Caller& caller, policies::Role needed,
                      const http::Request& request) const {
    if (caller.role && *caller.role >= needed)
        return {};
    if (!caller.is_known) {
        bool none = bearer_of(request).empty();
        return fail(ErrorCode::kPermissionDenied,
                    fmt::format("{}: send the header 'Authorization: Bearer TOKEN' with a token of "
                                "{} on the node (`berth token NAME --role ROLE` makes one)",
                                none ? "no token was sent" : "the token is not known here",
                                token_file_.empty() ? "adminTcp.tokenFile" : token_file_),
                    none ? "NoToken" : "WrongToken");
    }
    std::string where = request.credentials
                            ? fmt::format("spec.access of the Node document{}, then SIGHUP",
                                          document_.empty() ? "" : " (" + document_ + ")")
                            : fmt::format("{} on the node, then SIGHUP", token_file_);
    std::string standard =
        has_rules_ || !request.credentials
            ? std::string()
            : std::string(" (with no rules there: root and the daemon's user are admin, the node's "
                          "group is operator)");
    return fail(
        ErrorCode::kPermissionDenied,
        fmt::format("{} ({}) {}; {} {} takes the role {}. An admin changes that under {}{}",
                    caller.name, caller.details.empty() ? caller.from : caller.details,
                    caller.role ? fmt::format("has the role {}", policies::to_string(*caller.role))
                                : std::string("has no role here"),
                    request.method, request.path, policies::to_string(needed), where, standard),
        caller.role ? "RoleTooLow" : "NoRole");
}

} // namespace berth
