// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/commands.h"
#include "scheduler/cli/waiting.h"

#include <fmt/format.h>

#include <optional>

namespace berth::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAwayMax{30}; // how long a daemon may be gone meanwhile
constexpr std::chrono::milliseconds kLookEvery{200};

// Until nobody has that name; a process that cannot be ended is an error.
Status wait_until_gone(const AdminClient& client, const std::string& target) {
    std::optional<Clock::time_point> away_since;
    for (;; pause_between_looks(kLookEvery)) {
        auto reply = client.get(target);
        if (reply) {
            away_since.reset();
            const json::object* shown = reply->if_object();
            if (shown == nullptr)
                return fail(ErrorCode::kCorrupt, "berthd's reply is no instance");
            if (text_at(*shown, "state") == "Unkillable")
                return fail(ErrorCode::kDeadlineExceeded, text_at(*shown, "message"),
                            text_at(*shown, "reason"));
            if (!flag_at(*shown, "removing"))
                return fail(ErrorCode::kFailedPrecondition,
                            text_at(*shown, "name") + " was defined again meanwhile", "Redefined");
            continue;
        }
        if (reply.error().code == ErrorCode::kNotFound)
            return {};
        if (reply.error().reason != kNotReachable)
            return fail(reply.error());
        if (!away_since)
            away_since = Clock::now();
        if (Clock::now() - *away_since > kAwayMax)
            return fail(reply.error());
    }
}

} // namespace

Status delete_instance(const Session& session, const ChangeOptions& options) {
    const std::string target = "/v1/instances/" + http::percent_encode(options.name);
    std::string query;
    const auto add = [&query](const char* name, const std::string& value) {
        query +=
            fmt::format("{}{}={}", query.empty() ? '?' : '&', name, http::percent_encode(value));
    };
    if (options.dry_run)
        add("dryRun", "true");
    if (!options.request_id.empty())
        add("requestId", options.request_id);
    http::Headers headers;
    if (!options.if_match.empty())
        headers.set("If-Match", options.if_match.front() == '"' || options.if_match == "*"
                                    ? options.if_match
                                    : "\"" + options.if_match + "\"");
    BERTH_ASSIGN(const http::Response raw,
                 session.client.exchange("DELETE", target + query, {}, headers));
    BERTH_ASSIGN(const json::value reply, http::json_from(raw));
    if (!reply.is_object())
        return fail(ErrorCode::kCorrupt, "berthd's reply is no object: is it of the same version "
                                         "as this program?");
    const json::object& shown = reply.get_object();
    if (session.format == Format::kJson)
        print(pretty_json(reply));
    else if (session.format == Format::kYaml)
        print(yaml_text(reply));
    else
        print(text_at(shown, "message") + "\n");
    if (!options.wait || options.dry_run || !flag_at(shown, "removing"))
        return {};
    return wait_until_gone(session.client, target);
}

} // namespace berth::cli
